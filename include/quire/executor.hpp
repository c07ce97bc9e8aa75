// SPDX-License-Identifier: Apache-2.0
// Threads that run CPU work. Quire brings a persistent thread pool; an engine may bring its own threads instead.
#pragma once

#include <cstdint>
#include <memory>

namespace quire {

/// Largest number of threads of an executor or a plan.
inline constexpr int kMaxThreads = 4096;

/// Runs numbered tasks. Results never depend on which thread runs a task or in which order.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Threads that may run tasks at the same time; 1 to kMaxThreads.
  virtual int num_threads() const noexcept = 0;
  /// Calls `task(context, index, thread)` once for every index in [0, num_tasks), 0 <= thread < num_threads(), where no two
  /// concurrent calls share a thread number; returns after the last one. Must give happens-before to the caller.
  /// Tasks never call run() and never throw. Calls that use an executor check these promises and fail if one is broken. With one
  /// thread such calls run the tasks themselves.
  virtual void run(std::int64_t num_tasks, void (*task)(void* context, std::int64_t index, int thread), void* context) = 0;
};

/// A persistent pool of `num_threads` (0 = all cores this process may use), the calling thread included; fewer where the system
/// grants no more, and at most kMaxThreads. One run() at a time; concurrent callers queue. Safe to destroy when no run() is
/// active. In a forked child, which inherits no threads, the caller runs all tasks.
std::unique_ptr<Executor> make_thread_pool(int num_threads = 0);

/// The process-wide pool, created on first use (QUIRE_NUM_THREADS overrides its size). A forked child makes a pool of its own.
Executor& default_executor();

}  // namespace quire
