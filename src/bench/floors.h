// SPDX-License-Identifier: Apache-2.0
// What a problem costs at least: bytes, FLOPs, and which ceilings apply.
#pragma once

#include <cstdint>
#include <string>

#include "quire/bench.hpp"

namespace quire::benchmark {

/// K and V of one request that any of its rows sees, each key counted once.
std::int64_t kv_bytes_of(const Problem& problem, const Request& request);
std::int64_t kv_bytes_of(const Problem& problem);

/// The fastest way on this machine to multiply what the problem multiplies, exactly in its products: bf16 instructions where
/// query and cache fit into bf16, f32 otherwise.
struct ComputeCeiling {
  std::string name;
  double gflops = 0;
};
ComputeCeiling compute_ceiling(const Problem& problem, const Ceilings& ceilings);

}  // namespace quire::benchmark
