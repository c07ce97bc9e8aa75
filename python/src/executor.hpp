// SPDX-License-Identifier: Apache-2.0
// Who runs the work: the process-wide pool, or the one that set_num_threads() made.
#pragma once

#include <memory>

#include "quire/executor.hpp"

namespace quire_python {

/// More than any machine has: a larger number is a slip, and would start as many threads as the system grants.
inline constexpr int kMaxThreads = 4096;

/// Who runs one call, and how many threads its plan is for; both of one moment, or set_num_threads() in another thread comes
/// between.
struct Threads {
  std::shared_ptr<quire::Executor> executor;  ///< to be kept until the call is over
  int chosen = 0;                             ///< what set_num_threads() asked for; 0 = nothing was asked
};

/// Safe after fork(): the child gets a fresh pool.
Threads current_threads();
std::shared_ptr<quire::Executor> current_executor();
void set_num_threads(int num_threads);
/// Raises ArgumentError for a negative number and for one that no machine has.
void check_num_threads(int num_threads);

}  // namespace quire_python
