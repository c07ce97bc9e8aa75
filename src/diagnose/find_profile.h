// SPDX-License-Identifier: Apache-2.0
// The permitted rounding of a right kernel (a numerics profile): its effect on this batch, the search for the profile that looks
// like the observed error, and what tells rounding from a wrong factor: rounding has no common sign.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "diagnose/fault_model.h"
#include "diagnose/localise.h"
#include "quire/tools/diagnose.hpp"

namespace quire::diagnose_detail {

/// The tightest profile under which the observed output is right on `tokens`, or under which its small errors are and look like
/// that rounding: as large as what the emulated kernel makes of the same rows, in all rows that it shows in, and of no common
/// sign. `plain` holds these tokens; rows that are wrong by more than rounding stay wrong. Absent: no profile does.
Result<std::optional<NumericsProfile>> find_profile(const Facts& facts, const Observed& observed, const Localisation& plain,
                                                    const std::vector<std::int64_t>& tokens);

/// The smallest relative error that some element shows if all outputs have it: min over elements of tolerance / |out|. Infinite
/// if all outputs are 0.
double least_factor(const Reference& expected);

/// The truth, rounded where the profile rounds. An accumulator's roundings depend on the kernel's order and are left out.
Model emulated(const Facts& facts, const NumericsProfile& profile);

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
