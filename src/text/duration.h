// SPDX-License-Identifier: Apache-2.0
// The one check of a time that a caller gives, in seconds or minutes: NaN and infinity would never pass.
#pragma once

#include <string>

namespace quire {

/// Empty for a finite number of at least `least`, or else what is wrong: "nan, expected a finite number >= 0".
std::string duration_error(double value, double least = 0);

}  // namespace quire
