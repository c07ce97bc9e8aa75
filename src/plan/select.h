// SPDX-License-Identifier: Apache-2.0
// Choosing a kernel: the table's rows with their predicates, and the reasons of those that refuse.
#pragma once

#include <string>
#include <vector>

#include "plan/kernel.h"

namespace quire::plan_detail {

/// Returns every reason why this row cannot serve the problem on the device; empty if it can.
std::vector<std::string> refusals_of(const KernelRow& row, const Problem& problem, const Device& device);

/// The chosen row (null if none) and, in table order, the refusals of the rows preferred over it (all rows if none).
struct Selection {
  const KernelRow* row = nullptr;
  std::vector<Refusal> refusals;
};
/// First row that takes the problem; with `forced`, that row or none.
Selection select(const Problem& problem, const Device& device, const std::string& forced);

}  // namespace quire::plan_detail
