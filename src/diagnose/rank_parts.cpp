// SPDX-License-Identifier: Apache-2.0
// See rank_parts.h.
#include "diagnose/rank_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/tolerance.h"
#include "semantics/dtype.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kU = numerics::kAccumulatorRoundoff;
/// Roundings of one weight exp(lse_k - max) / sum besides its argument: two of exp, the sum, the division, the product.
constexpr double kWeightSteps = 8;

/// Relative error of the weight of part k: the errors of the lse, doubled for the sum of the weights, and f32 arithmetic whose
/// argument lse_k - max is rounded once.
double weight_error(const std::vector<Numbers>& parts, std::size_t k, std::size_t cell) {
  double max = -std::numeric_limits<double>::infinity(), most = 0;
  for (const Numbers& part : parts) {
    max = std::max(max, part.lse[cell]);
    if (std::isfinite(part.lse[cell])) most = std::max(most, part.lse_tolerance[cell]);
  }
  const double argument = std::isfinite(parts[k].lse[cell]) && std::isfinite(max) ? std::fabs(parts[k].lse[cell] - max) : 0;
  const double magnitude = std::isfinite(max) ? std::fabs(max) : 0;
  // lse of another base are larger by 1 / ln 2.
  const double lse_errors = 1.5 * (parts[k].lse_tolerance[cell] + most);
  return lse_errors + kU * (argument + magnitude + kWeightSteps + static_cast<double>(parts.size()));
}

}  // namespace

Numbers numbers_of(const Tensor& out, const Tensor& lse, const std::vector<std::int64_t>& tokens) {
  Numbers n;
  n.heads = out.shape[1];
  n.dims = out.shape[2];
  for (const std::int64_t t : tokens)
    for (std::int64_t h = 0; h < n.heads; ++h) {
      for (std::int64_t d = 0; d < n.dims; ++d)
        n.out.push_back(semantics::load(out.data, out.dtype, t * out.stride[0] + h * out.stride[1] + d * out.stride[2]));
      if (lse.present()) n.lse.push_back(semantics::load(lse.data, lse.dtype, t * lse.stride[0] + h * lse.stride[1]));
    }
  n.out_tolerance.assign(n.out.size(), 0.0);
  n.lse_tolerance.assign(n.lse.size(), 0.0);
  return n;
}

Numbers expected_part(const Reference& reference, DType type) {
  Numbers n;
  n.heads = reference.num_q_heads;
  n.dims = reference.head_dim;
  n.out = reference.out;
  n.lse = reference.lse;
  const numerics::OutputType stored = numerics::output_type(type);
  for (std::int64_t row = 0; row < reference.num_tokens * n.heads; ++row) {
    const numerics::RowErrors errors = numerics::row_errors(reference, row);
    for (std::int64_t d = 0; d < n.dims; ++d)
      n.out_tolerance.push_back(numerics::output_tolerance(reference, errors, row * n.dims + d, stored));
    n.lse_tolerance.push_back(std::isfinite(n.lse[static_cast<std::size_t>(row)]) ? numerics::lse_tolerance(reference, row) : 0);
  }
  return n;
}

Predicted merged_cell(const std::vector<Numbers>& parts, const faults_detail::Shares& shares, std::size_t cell, DType type) {
  const auto dims = static_cast<std::size_t>(parts.front().dims);
  Predicted p{std::vector<double>(dims, 0.0), std::vector<double>(dims, 0.0)};
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (shares.of[k] == 0) continue;
    const double weight = std::fabs(shares.of[k]), relative = weight_error(parts, k, cell);
    for (std::size_t d = 0; d < dims; ++d) {
      const double value = parts[k].out[cell * dims + d];
      p.out[d] += shares.of[k] * value;
      p.tolerance[d] += weight * (parts[k].out_tolerance[cell * dims + d] + relative * std::fabs(value));
    }
  }
  const numerics::OutputType stored = numerics::output_type(type);
  for (std::size_t d = 0; d < dims; ++d)
    p.tolerance[d] = numerics::kSecondOrder * (p.tolerance[d] + stored.roundoff * std::fabs(p.out[d])) + stored.smallest;
  return p;
}

void judge_cell(const Predicted& expected, const Numbers& observed, std::size_t cell, std::int64_t token, DType type,
                Judged& found) {
  const numerics::OutputType stored = numerics::output_type(type);
  const auto dims = static_cast<std::size_t>(observed.dims);
  for (std::size_t d = 0; d < dims; ++d) {
    const double seen = observed.out[cell * dims + d], wanted = expected.out[d];
    ++found.num_elements;
    const double error = std::fabs(seen - wanted);
    if (std::isfinite(error) && error > 0) found.worst_ratio = std::max(found.worst_ratio, error / expected.tolerance[d]);
    if (numerics::judge(seen, wanted, expected.tolerance[d], stored.overflow) == numerics::ElementVerdict::fine) continue;
    if (found.num_wrong++ == 0)
      found.first = formatted("row {} head {} dim {}: {:.6g}, expected {:.6g} +- {:.2g}", token,
                              cell % static_cast<std::size_t>(observed.heads), d, seen, wanted, expected.tolerance[d]);
  }
}

}  // namespace quire::diagnose_detail
