// SPDX-License-Identifier: Apache-2.0
// Cells that a cause changes by less than their tolerance: they are right, and say nothing about where the cause holds.
#pragma once

#include <cstddef>
#include <vector>

#include "diagnose/fault_model.h"
#include "diagnose/localise.h"

namespace quire::diagnose_detail {

/// Cells that a cause does not touch at all, as rows shorter than a window: right ones tell where it shows, not where it holds.
enum class Untouched { left_out, listed };

/// Indices in `where.rows` of right cells that the model of the cause changes, but not beyond their tolerance. Empty if that
/// would take long.
std::vector<std::size_t> unmoved_cells(const Facts& facts, const Observed& observed, const Localisation& where,
                                       const Model& cause, Untouched untouched = Untouched::left_out);

}  // namespace quire::diagnose_detail
