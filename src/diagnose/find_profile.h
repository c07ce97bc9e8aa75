// SPDX-License-Identifier: Apache-2.0
// Search for the permitted rounding of a right kernel (a numerics profile) that looks like the observed error.
#pragma once

#include <optional>
#include <vector>

#include "diagnose/localise.h"

namespace quire::diagnose_detail {

/// The tightest profile under which the observed output is right on `tokens`, or under which its small errors are and look like
/// that rounding: as large as what the emulated kernel makes of the same rows, in all rows that it shows in, and of no common
/// sign. `plain` holds these tokens; rows that are wrong by more than rounding stay wrong. Absent: no profile does.
Result<std::optional<NumericsProfile>> find_profile(const Facts& facts, const Observed& observed, const Localisation& plain,
                                                    const std::vector<std::int64_t>& tokens);

/// The smallest relative error that some element shows if all outputs have it: min over elements of tolerance / |out|. Infinite
/// if all outputs are 0.
double least_factor(const Reference& expected);

}  // namespace quire::diagnose_detail
