// Who runs CPU work. Quire brings a persistent thread pool; an engine may bring its own threads instead.
#pragma once

#include <cstdint>
#include <memory>

namespace quire {

/// Runs numbered tasks. Results never depend on which thread runs a task or in which order.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Threads that may run tasks at the same time; >= 1.
  virtual int num_threads() const noexcept = 0;
  /// Calls `task(context, index, thread)` once for every index in [0, num_tasks), 0 <= thread < num_threads(), where no two
  /// concurrent calls share a thread number; returns after the last one. Must give happens-before to the caller.
  /// Tasks never call run() and never throw.
  virtual void run(std::int64_t num_tasks, void (*task)(void* context, std::int64_t index, int thread), void* context) = 0;
};

/// A persistent pool of `num_threads` (0 = all cores this process may use), the calling thread included.
/// One run() at a time; concurrent callers queue. Safe to destroy when no run() is active.
std::unique_ptr<Executor> make_thread_pool(int num_threads = 0);

/// The process-wide pool, created on first use (QUIRE_NUM_THREADS overrides its size).
Executor& default_executor();

}  // namespace quire
