// SPDX-License-Identifier: Apache-2.0
// Floor of a plan on a GPU whose ceilings were measured (roofline lower bound): bytes over bandwidth, operations over rate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/plan.hpp"

namespace quire {

/// Least time of one attend() that reads K and V from memory, the rows of each request once, and multiplies in 16 bits or wider.
/// It predicts no kernel: a call takes longer. K and V in the L2 cache, and pages that requests share, can be read faster.
struct Roofline {
  std::string device;           ///< device that was measured: "H200"; empty if there is no floor
  std::string why_not;          ///< why there is no floor; empty if there is one
  std::int64_t bytes = 0;       ///< bytes of K and V in the visible ranges (Plan::kv_bytes)
  double flops = 0;             ///< operations of both products (Plan::flops)
  double bytes_per_second = 0;  ///< fastest reading that was measured on the device
  double flops_per_second = 0;  ///< fastest product of 16-bit matrices that was measured on the device

  bool known() const { return why_not.empty(); }
  double read_seconds() const { return known() ? static_cast<double>(bytes) / bytes_per_second : 0; }
  double compute_seconds() const { return known() ? flops / flops_per_second : 0; }
  /// The floor. 0 if there is none.
  double seconds() const { return std::max(read_seconds(), compute_seconds()); }
  /// Name of the resource that sets the floor: "memory" or "compute".
  std::string_view binds() const { return read_seconds() >= compute_seconds() ? "memory" : "compute"; }
};

/// Only for plans of an H100 or an H200 that know the lengths. The pretended device sm90 is taken for an H200, whose floor is
/// lower.
Roofline roofline_of(const Plan& plan);

}  // namespace quire
