// SPDX-License-Identifier: Apache-2.0
// Cells that a cause changes by less than their tolerance: they are right, and say nothing about where the cause holds.
#pragma once

#include <cstddef>
#include <vector>

#include "diagnose/fault_model.h"
#include "diagnose/localise.h"

namespace quire::diagnose_detail {

/// Indices in `where.rows` of right cells that the model of the cause changes, but not beyond their tolerance. Empty if that
/// would take long.
std::vector<std::size_t> unmoved_cells(const Facts& facts, const Observed& observed, const Localisation& where,
                                       const Model& cause);

}  // namespace quire::diagnose_detail
