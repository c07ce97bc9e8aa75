// SPDX-License-Identifier: Apache-2.0
// A persistent thread pool: workers spin briefly for the next run, then sleep in the kernel; tasks come from one atomic counter.
//
// A run never waits for a worker that has not come yet. Workers enter through a gate that the caller opens and, once no task is
// left, closes: only those inside are waited for. So a small run on a busy machine costs what the caller needs alone.
//
// A forked child has no workers, and what it inherits may be a lock that nobody will open and a gate that nobody will leave. So
// the child touches none of it: a pool of another process runs its tasks on the caller.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "quire/devices.hpp"
#include "quire/executor.hpp"

namespace quire {
namespace {

/// Tells the core that this is a waiting loop.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/// Returns once `value` is no longer `old`: spins for the gap between a step's small calls, then sleeps.
inline void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  constexpr int kSpins = 400;  // about 10 us of pauses (40 cycles to 140 each)
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  value.wait(old, std::memory_order_acquire);
}

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int num_threads) {
    workers_->reserve(static_cast<std::size_t>(num_threads));
    try {
      for (int i = 1; i < num_threads; ++i) workers_->emplace_back([this, i] { work(i); });
    } catch (const std::system_error&) {
      // The system grants no more threads: those that it did, and the caller, share the work.
      num_threads = static_cast<int>(workers_->size()) + 1;
    }
  }

  ~ThreadPool() override {
    if (is_inherited()) {
      // Joining threads of another process would wait for ever.
      [[maybe_unused]] const auto* left_alone = workers_.release();
      return;
    }
    stopping_.store(true, std::memory_order_relaxed);
    announce();
    for (std::thread& t : *workers_) t.join();
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept override { return static_cast<int>(workers_->size()) + 1; }

  void run(std::int64_t num_tasks, void (*task)(void*, std::int64_t, int), void* context) override {
    if (is_inherited()) {
      for (std::int64_t i = 0; i < num_tasks; ++i) task(context, i, 0);
      return;
    }
    const std::lock_guard one_run_at_a_time(run_mutex_);
    job_ = {task, context, num_tasks};
    next_.store(0, std::memory_order_relaxed);
    gate_.store(kOpen, std::memory_order_release);  // publishes the job to those who enter
    if (num_tasks > 1) announce();
    drain(0);
    gate_.fetch_and(~kOpen, std::memory_order_relaxed);
    // Acquire pairs with the release of those who leave: their tasks' writes become visible to the caller.
    for (std::uint32_t inside; (inside = gate_.load(std::memory_order_acquire)) != 0;) wait_while(gate_, inside);
  }

 private:
  struct Job {
    void (*task)(void*, std::int64_t, int) = nullptr;
    void* context = nullptr;
    std::int64_t num_tasks = 0;
  };

  bool is_inherited() const { return getpid() != owner_; }

  void drain(int thread) {
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < job_.num_tasks;)
      job_.task(job_.context, i, thread);
  }

  void announce() {
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }

  /// False if the gate is closed: the run is over already, or none has begun.
  bool enter() {
    std::uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kOpen) != 0)
      if (gate_.compare_exchange_weak(gate, gate + kOneInside, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    return false;
  }

  void leave() {
    if (gate_.fetch_sub(kOneInside, std::memory_order_release) == kOneInside) gate_.notify_one();
  }

  void work(int thread) {
    for (std::uint32_t seen = 0;;) {
      wait_while(generation_, seen);
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_.load(std::memory_order_relaxed)) return;
      if (!enter()) continue;
      drain(thread);
      leave();
    }
  }

  static constexpr std::uint32_t kOpen = 1, kOneInside = 2;

  const pid_t owner_ = getpid();
  std::mutex run_mutex_;
  Job job_;                                               // written while nobody is inside
  alignas(64) std::atomic<std::uint32_t> generation_{0};  // counts announcements
  alignas(64) std::atomic<std::uint32_t> gate_{0};        // kOpen, plus kOneInside for each worker inside
  alignas(64) std::atomic<std::int64_t> next_{0};         // the next task
  std::atomic<bool> stopping_{false};
  // Last: threads use everything above.
  std::unique_ptr<std::vector<std::thread>> workers_ = std::make_unique<std::vector<std::thread>>();
};

}  // namespace

std::unique_ptr<Executor> make_thread_pool(int num_threads) {
  return std::make_unique<ThreadPool>(std::min(num_threads > 0 ? num_threads : host_device().num_threads, kMaxThreads));
}

namespace {

struct ProcessPool {
  pid_t owner = getpid();
  std::unique_ptr<Executor> pool = make_thread_pool();
};

}  // namespace

Executor& default_executor() {
  // No lock and no guard of a static object: a fork while another thread held it would leave it locked in the child. Never
  // destroyed: another library's static destructor may still call attend().
  static constinit std::atomic<const ProcessPool*> current{nullptr};
  const ProcessPool* known = current.load(std::memory_order_acquire);
  if (known != nullptr && known->owner == getpid()) return *known->pool;
  auto made = std::make_unique<const ProcessPool>();
  if (current.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return *made.release()->pool;
  return *known->pool;  // another thread of this process was first
}

}  // namespace quire
