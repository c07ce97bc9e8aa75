// SPDX-License-Identifier: Apache-2.0
// The pool behind every Python call. Threads do not survive fork(), so a child that inherits a pool makes its own.
#include "executor.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

#include "errors.hpp"

namespace quire_python {
namespace {

struct Shared {
  std::mutex mutex;
  std::shared_ptr<quire::Executor> pool;
  int num_threads = 0;
  int owner = 0;  ///< this_process() of the one that made the pool
};

/// A number that a forked child does not share with its parent. Each call asks, and getpid() would be a call of the system.
int this_process() {
  static std::atomic<int> forks{0};
  static const bool counted = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); }) == 0;
  return counted ? forks.load(std::memory_order_relaxed) : getpid();
}

/// Leaked: worker threads may still run when static objects are destroyed.
Shared& shared() {
  static Shared* const state = new Shared;
  return *state;
}

/// The default pool is the library's own; it must not be deleted, and a forked child cannot use the parent's.
std::shared_ptr<quire::Executor> make_pool(int num_threads, bool forked) {
  if (num_threads == 0 && !forked) return {&quire::default_executor(), [](quire::Executor*) {}};
  return quire::make_thread_pool(num_threads);
}

}  // namespace

Threads current_threads() {
  Shared& s = shared();
  const std::scoped_lock lock(s.mutex);
  const int self = this_process();
  if (s.pool == nullptr || s.owner != self) {
    const bool forked = s.pool != nullptr;
    // The parent's threads do not exist here, so destroying its pool would wait for them for ever.
    if (forked) new std::shared_ptr<quire::Executor>(std::move(s.pool));
    s.pool = make_pool(s.num_threads, forked);
    s.owner = self;
  }
  return {s.pool, s.num_threads};
}

std::shared_ptr<quire::Executor> current_executor() { return current_threads().executor; }

void check_num_threads(int num_threads) {
  if (num_threads >= 0 && num_threads <= kMaxThreads) return;
  throw_error(quire::Code::invalid_argument, "num_threads: " + std::to_string(num_threads) + " outside [0, " +
                                                 std::to_string(kMaxThreads) + "] (0 = all cores)");
}

int threads_of_plan(int num_threads, const quire::Batch& batch) {
  return num_threads > 0 || batch.query.memory != quire::Memory::cpu ? num_threads : current_threads().chosen;
}

quire::PlanSettings settings_of_plan(quire::PlanSettings asked, const quire::Batch& batch) {
  check_num_threads(asked.num_threads);
  asked.num_threads = threads_of_plan(asked.num_threads, batch);
  return asked;
}

void set_num_threads(int num_threads) {
  Shared& s = shared();
  const std::scoped_lock lock(s.mutex);
  if (s.pool != nullptr && s.owner != this_process()) new std::shared_ptr<quire::Executor>(std::move(s.pool));
  s.num_threads = num_threads;
  s.pool = num_threads > 0 ? std::shared_ptr<quire::Executor>(quire::make_thread_pool(num_threads)) : nullptr;
  s.owner = this_process();
}

}  // namespace quire_python
