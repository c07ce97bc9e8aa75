// SPDX-License-Identifier: Apache-2.0
// Executor of CPU calls: the process-wide pool, or the pool that set_num_threads() made.
#pragma once

#include <memory>

#include "quire/batch.hpp"
#include "quire/executor.hpp"
#include "quire/plan.hpp"

namespace quire_python {

/// Largest number of threads, more than any machine has. A larger number is a slip, and would start all threads the system
/// grants.
inline constexpr int kMaxThreads = 4096;

/// Executor of one call and the number of threads for its plan, read together so that set_num_threads() in another thread cannot
/// come between.
struct Threads {
  std::shared_ptr<quire::Executor> executor;  ///< keep it until the call is over
  int chosen = 0;                             ///< argument of set_num_threads(); 0 = never called
};

/// Safe after fork(): the child gets a fresh pool.
Threads current_threads();
std::shared_ptr<quire::Executor> current_executor();
void set_num_threads(int num_threads);
/// Raises ArgumentError for a negative number and for one that no machine has.
void check_num_threads(int num_threads);
/// Number of threads for a plan: the argument, or what set_num_threads() chose, which is about CPUs.
int threads_of_plan(int num_threads, const quire::Batch& batch);
/// What a caller asked of a plan, with the threads that it gets. Raises for a number of threads that no machine has.
quire::PlanSettings settings_of_plan(quire::PlanSettings asked, const quire::Batch& batch);

}  // namespace quire_python
