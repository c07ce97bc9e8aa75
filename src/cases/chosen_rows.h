// SPDX-License-Identifier: Apache-2.0
// Rows of a case: the ones that are compared where all would take too long, and the ones whose softmax weights are rounded.
// verify() and bench() choose rows, and widen tolerances, by these functions alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/plan.hpp"
#include "quire/problem.hpp"
#include "quire/tools/compare.hpp"

namespace quire::cases {

/// A stratified choice of rows worth `budget`: the first, second and last of every request, all rows of short requests, rows at
/// borders of pages and of tiles of 64, random ones for the rest. Ascending. Empty if the budget pays for all rows.
std::vector<std::int64_t> choose_rows(const Problem& problem, std::int64_t budget, std::uint64_t seed);

/// The rows `tokens` of a contiguous tensor, one after the other in `bytes`; without tokens the tensor as it is.
Tensor rows_of(const Tensor& t, const std::vector<std::int64_t>& tokens, std::vector<std::byte>& bytes);

/// Returns, for every row of a problem, whether the plan rounds its softmax weights to the type of the query.
std::vector<bool> rounded_rows(const Plan& plan, const Problem& problem);

/// Widens the tolerance of the rows whose entry of `rounded` is true. An 8-bit query counts as f16, because kernels round weights
/// to f16 there. `tokens`: rows that `expected` holds; empty: all of them.
void allow_rounded_rows(Reference& expected, DType query, const std::vector<bool>& rounded,
                        const std::vector<std::int64_t>& tokens);

}  // namespace quire::cases
