// SPDX-License-Identifier: Apache-2.0
// A wrong (row, head) laid open key by key: what the truth multiplies, adds and divides. An inversion asks of these numbers which
// change of them gives the observed output.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "diagnose/fault_model.h"
#include "diagnose/localise.h"
#include "diagnose/observed.h"

namespace quire::diagnose_detail {

struct OpenCell {
  RowHead at;
  Row row;  ///< the truth
  std::int64_t reference_row = 0;

  /// Positions [0, end) are open: the visible ones and those that a mask too wide would add, up to the end of the last page.
  /// Visible keys lie in [from, to); of these, sees() tells.
  std::int64_t from = 0, to = 0, end = 0;
  std::vector<bool> seen;       ///< [end] the mask shows the key to the row
  std::vector<double> dots;     ///< [end] q . K, with k_scale
  std::vector<double> scores;   ///< [end] after softmax_scale, soft cap and ALiBi
  std::vector<double> weights;  ///< [end] exp(score - max), also of keys that are not visible
  std::vector<double> values;   ///< [end][v_head_dim] V, with v_scale
  double max = 0;               ///< the largest visible score, the sink included
  double denominator = 0;       ///< sum of the visible weights and of the sink's
  double sink_weight = 0;       ///< exp(sink - max), 0 without a sink

  std::vector<double> expected, observed;
  std::vector<double>
      inverse;  ///< 1 / tolerance of each dim; 0 for a dim that is out of the question (NaN, or outside the pattern)
  double lse = 0, observed_lse = 0;
  bool has_lse = false;

  std::size_t dims() const { return expected.size(); }
  bool sees(std::int64_t position) const { return seen[static_cast<std::size_t>(position)]; }
  const double* value(std::int64_t position) const { return values.data() + static_cast<std::size_t>(position) * dims(); }
  /// Sum over dims of ((observed - out) / tolerance)^2.
  double distance(std::span<const double> out) const;
  /// Distance of the reference: the error that is to be explained.
  double error() const { return distance(expected); }
  /// Whether a prediction at this distance is worth testing: it leaves next to nothing of the error, or no more than rounding
  /// leaves. The limit 0.3 is the square of about half a tolerance in each dim.
  bool explained_by(double distance) const;
};

/// Opens one compared cell. `end` grows to at most `most_keys` positions; of a cell that lies further back only `expected`,
/// `observed` and `inverse` are filled (end = 0).
OpenCell open_cell(const Facts& facts, const Observed& observed, const Localisation& where, const Compared& cell,
                   std::int64_t most_keys);

/// numerator / denominator under one free coefficient: out(x) = (N + x part) / (D + x weight), where N and D are the cell's own.
struct OneCoefficient {
  double x = 0;     ///< the best value: -1 leaves the part out, +1 counts it twice
  double left = 1;  ///< share of the squared error that is left at x
};
OneCoefficient fit_coefficient(const OpenCell& cell, std::span<const double> part, double weight);

/// Weighted sum of V over the visible positions of [from, to), and the sum of the weights.
struct Partial {
  std::vector<double> out;
  double weight = 0;
};
Partial partial(const OpenCell& cell, std::int64_t from, std::int64_t to);

}  // namespace quire::diagnose_detail
