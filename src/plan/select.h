// SPDX-License-Identifier: Apache-2.0
// Choosing a kernel: the table's rows with their predicates, and the reasons of those that refuse.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "quire/plan.hpp"

namespace quire::plan_detail {

struct KernelRow {
  Kernel info;
  /// One reason for each condition of this row that the problem breaks (device conditions are added by refusals_of).
  std::vector<std::string> (*refuses)(const Problem& problem, const Device& device);
};

/// src/plan/kernels.inc, in order of preference.
std::span<const KernelRow> kernel_rows() noexcept;

/// Every reason why this row cannot serve the problem on the device; empty if it can.
std::vector<std::string> refusals_of(const KernelRow& row, const Problem& problem, const Device& device);

/// Why a row that could run here is left to those who name it; empty: it is not.
std::string slower_than_the_next_row(const KernelRow& row, const Device& device);

/// The chosen row (null if none) and, in table order, the refusals of the rows preferred over it (all rows if none).
struct Selection {
  const KernelRow* row = nullptr;
  std::vector<Refusal> refusals;
};
/// First row that takes the problem; with `forced`, that row or none.
Selection select(const Problem& problem, const Device& device, const std::string& forced);

}  // namespace quire::plan_detail
