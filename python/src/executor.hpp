// Who runs the work: the process-wide pool, or the one that set_num_threads() made.
#pragma once

#include <memory>

#include "quire/executor.hpp"

namespace quire_python {

/// The executor for one call; keep the pointer until the call is over. Safe after fork(): the child gets a fresh pool.
std::shared_ptr<quire::Executor> current_executor();
void set_num_threads(int num_threads);
/// What set_num_threads() asked for; 0 = nothing was asked.
int chosen_num_threads();

}  // namespace quire_python
