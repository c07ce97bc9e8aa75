// SPDX-License-Identifier: Apache-2.0
// Counts of candidates under which every equation of a homogeneous system holds: a null vector of numbers that are not negative.
// Its size is free, so one linear condition on the counts fixes it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace quire::diagnose_detail {

/// sum over candidates of count * column = 0, up to an error of about 1 in each equation.
struct NullSystem {
  std::size_t equations = 0;
  std::vector<double> columns;  ///< [candidate][equation]
  std::vector<double> mass;     ///< [candidate] > 0; the counts are such that sum count * mass = 1
  std::vector<double> start;    ///< [candidate] counts from which the search begins

  std::size_t candidates() const { return mass.size(); }
  std::span<const double> column(std::size_t i) const { return std::span(columns).subspan(i * equations, equations); }
};

/// The counts >= 0 that leave the least sum of squares, found by Lawson and Hanson's active sets (1974), which begin with the
/// candidates of `start`. A candidate joins only if it explains more of what is left than noise does, so few join: the system may
/// have more candidates than equations. At most `steps` candidates join.
std::vector<double> bounded_null_vector(const NullSystem& system, std::size_t steps);

/// The least length of sum change * column over changes of length 1 of the candidates `among` that are orthogonal to `counts`.
/// Counts that differ by one in some candidate differ by at least that much in the equations. Longer columns count as `longest`,
/// far above what is asked of the value, so that double precision holds short ones beside them. 0 if there are not twice as many
/// equations as candidates.
double second_singular_value(const NullSystem& system, const std::vector<std::size_t>& among, const std::vector<double>& counts,
                             double longest);

/// Euclidean length.
double length(std::span<const double> v);

}  // namespace quire::diagnose_detail
