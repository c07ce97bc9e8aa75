// SPDX-License-Identifier: Apache-2.0
// Tells rounding from a wrong factor: errors of rounding have no common sign, those of a factor are one multiple of what the
// factor changes, per KV head.
#pragma once

#include <cstdint>
#include <span>

namespace quire::diagnose_detail {

/// The error of one cell, projected on the direction in which a factor would move the output.
struct Projection {
  double along = 0;        ///< sum over dims of error * direction
  double length = 0;       ///< sum over dims of direction^2
  double noise = 0;        ///< sum over dims of the square of the error that rounding alone would leave; 0: the cell says nothing
  std::int64_t group = 0;  ///< cells of a group may share a factor

  void add(double error, double direction) {
    along += error * direction;
    length += direction * direction;
  }
};

/// True if one factor per group explains the projections far better than chance (a one-way analysis of variance through the
/// origin). A factor below `lawful`, relative to 1, is no finding.
bool have_common_factor(std::span<const Projection> cells, double lawful);

}  // namespace quire::diagnose_detail
