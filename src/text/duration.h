// SPDX-License-Identifier: Apache-2.0
// The check of a time that a caller gives, in seconds or minutes. A call would never end at a time of NaN or infinity.
#pragma once

#include <string>

namespace quire {

/// Empty for a finite number of at least `least`; else says what is wrong: "nan, expected a finite number >= 0".
std::string duration_error(double value, double least = 0);

}  // namespace quire
