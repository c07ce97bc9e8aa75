// SPDX-License-Identifier: Apache-2.0
// Starting and joining: std::jthread joins whatever happens, and nothing leaves a thread but through `error`.
#include "threads/on_threads.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <vector>

namespace quire::threads {
namespace {

/// Helpers that have not ended. The calling thread, the only one that may ask whether its call shall end, asks while it waits.
class Running {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void remove() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) changed_.notify_one();
  }
  void wait(InterruptScope& scope) {
    constexpr std::chrono::milliseconds kMoment{20};
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kMoment, [this] { return count_ == 0; })) {
      lock.unlock();
      scope.ended();
      lock.lock();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

}  // namespace

void on_threads(std::size_t num_threads, const std::function<void()>& run) {
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;
  const auto guarded = [&]() noexcept {
    try {
      run();
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
  };
  InterruptScope* const scope = InterruptScope::current();
  Running running;
  const auto help = [&]() noexcept {
    InterruptScope::adopt(scope);
    guarded();
    running.remove();
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (std::size_t i = 1; i < num_threads; ++i) {
        helpers.emplace_back(help);
        running.add();
      }
    } catch (const std::exception&) {
      num_threads = helpers.size() + 1;  // the system grants no more, be it threads or memory
    }
    guarded();
    if (scope != nullptr) running.wait(*scope);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace quire::threads
