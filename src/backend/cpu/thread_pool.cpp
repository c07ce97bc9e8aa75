// A persistent thread pool: workers spin briefly for the next run, then sleep; tasks are taken from one atomic counter.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "quire/executor.hpp"
#include "quire/plan.hpp"

namespace quire {
namespace {

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int num_threads) {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  ~ThreadPool() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : workers_) t.join();
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept override { return static_cast<int>(workers_.size()) + 1; }

  void run(std::int64_t num_tasks, void (*task)(void*, std::int64_t, int), void* context) override {
    const std::lock_guard one_run_at_a_time(run_mutex_);
    {
      const std::lock_guard lock(mutex_);
      job_ = {task, context, num_tasks};
      next_.store(0, std::memory_order_relaxed);
      busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    drain(job_, 0);
    wait_until_idle();
  }

 private:
  struct Job {
    void (*task)(void*, std::int64_t, int) = nullptr;
    void* context = nullptr;
    std::int64_t num_tasks = 0;
  };

  void drain(const Job& job, int thread) {
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < job.num_tasks;) job.task(job.context, i, thread);
  }

  /// The release in `busy_` and the acquire here make the workers' writes visible to the caller of run().
  void wait_until_idle() {
    for (int spin = 0; spin < kSpins; ++spin)
      if (busy_.load(std::memory_order_acquire) == 0) return;
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return busy_.load(std::memory_order_acquire) == 0; });
  }

  bool wait_for_job(std::uint64_t seen) {
    for (int spin = 0; spin < kSpins; ++spin)
      if (generation_.load(std::memory_order_acquire) != seen) return true;
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stopping_ || generation_.load(std::memory_order_acquire) != seen; });
    return generation_.load(std::memory_order_acquire) != seen;
  }

  void work(int thread) {
    for (std::uint64_t seen = 0; wait_for_job(seen);) {
      Job job;
      {
        const std::lock_guard lock(mutex_);
        seen = generation_.load(std::memory_order_relaxed);
        job = job_;
      }
      drain(job, thread);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex_);
        idle_.notify_one();
      }
    }
  }

  static constexpr int kSpins = 2000;  // a few microseconds: longer than the gap between a step's layers' phases

  std::mutex run_mutex_, mutex_;
  std::condition_variable wake_, idle_;
  Job job_;
  bool stopping_ = false;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> busy_{0};
  std::vector<std::thread> workers_;  // last: threads use everything above
};

}  // namespace

std::unique_ptr<Executor> make_thread_pool(int num_threads) {
  return std::make_unique<ThreadPool>(num_threads > 0 ? num_threads : host_device().num_threads);
}

Executor& default_executor() {
  // Never destroyed: another library's static destructor may still call attend().
  static Executor* pool = make_thread_pool().release();
  return *pool;
}

}  // namespace quire
