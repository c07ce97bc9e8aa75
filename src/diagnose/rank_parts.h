// SPDX-License-Identifier: Apache-2.0
// Parts and results of ranks as numbers with tolerances, for the rows that are compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/rank_captures.h"
#include "faults/ranks.h"
#include "numerics/tolerance.h"

namespace quire::diagnose_detail {

/// [row, head, dim] numbers of one rank, and how far a right rank may be from them.
struct Numbers {
  std::int64_t heads = 0, dims = 0;
  std::vector<double> out, out_tolerance;  ///< [rows, heads, dims]
  std::vector<double> lse, lse_tolerance;  ///< [rows, heads]

  std::size_t cell(std::int64_t row, std::int64_t head) const { return static_cast<std::size_t>(row * heads + head); }
};

/// The chosen rows of a tensor [num_tokens, heads, dims] and of an lse (may be absent), without tolerances.
Numbers numbers_of(const Tensor& out, const Tensor& lse, const std::vector<std::int64_t>& tokens);

/// fp64 attention of a rank's own batch, with the tolerance of a part in `type`.
Numbers expected_part(const Reference& reference, DType type);

/// Counts of one comparison; a wrong element is NaN or infinity in the wrong place, or beyond its tolerance.
struct Judged {
  std::int64_t num_elements = 0, num_wrong = 0;
  double worst_ratio = 0;
  std::string first;  ///< the first wrong element, in words
};

/// A value and its tolerance for every dim of one cell.
struct Predicted {
  std::vector<double> out, tolerance;
};

/// sum_k shares.of[k] part_k, and how far ranks may be from it that merge in f32 and store `type`.
Predicted merged_cell(const std::vector<Numbers>& parts, const faults_detail::Shares& shares, std::size_t cell, DType type);

/// Adds a cell to what was found. `tokens`: for its name.
void judge_cell(const Predicted& expected, const Numbers& observed, std::size_t cell, std::int64_t token, DType type,
                Judged& found);

}  // namespace quire::diagnose_detail
