// SPDX-License-Identifier: Apache-2.0
// Medians and what is known about them.
#pragma once

#include <vector>

#include "quire/bench.hpp"

namespace quire::benchmark {

/// The middle value, or the mean of the two in the middle; 0 for none.
double median(std::vector<double> values);

/// The median of block medians and its 95 % confidence interval by order statistics: no assumption about how times are
/// distributed. With fewer than 6 blocks the interval is all that was seen, widened on both sides by its own length.
Interval interval_of(const std::vector<double>& blocks);

}  // namespace quire::benchmark
