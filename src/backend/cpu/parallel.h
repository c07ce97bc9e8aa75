// Running a lambda as an Executor's tasks.
#pragma once

#include <cstdint>

#include "quire/executor.hpp"

namespace quire::cpu {

/// body(index, thread) for every index in [0, count); runs inline if there is nothing to share.
template <typename Body>
void parallel_for(Executor& executor, std::int64_t count, Body& body) {
  if (count == 1 || executor.num_threads() == 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i, 0);
  } else if (count > 1) {
    executor.run(
        count, [](void* context, std::int64_t index, int thread) { (*static_cast<Body*>(context))(index, thread); }, &body);
  }
}

}  // namespace quire::cpu
