// SPDX-License-Identifier: Apache-2.0
// Is one element right? NaN and infinity by class, everything else by its tolerance.
#pragma once

#include <cmath>

namespace quire::numerics {

enum class ElementVerdict { fine, over_tolerance, wrong_class };

/// Infinite where rounding must, or may, overflow; NaN only where the reference is NaN.
inline ElementVerdict judge(double observed, double expected, double tolerance, double overflow) {
  if (std::isnan(expected)) return std::isnan(observed) ? ElementVerdict::fine : ElementVerdict::wrong_class;
  if (std::isnan(observed)) return ElementVerdict::wrong_class;
  const double slack = std::isfinite(tolerance) ? tolerance : 0.0;
  if (std::isinf(observed)) {
    const bool may_overflow = std::fabs(expected) + slack >= overflow;
    return may_overflow && std::signbit(observed) == std::signbit(expected) ? ElementVerdict::fine : ElementVerdict::wrong_class;
  }
  if (std::fabs(expected) - slack >= overflow) return ElementVerdict::wrong_class;
  return std::fabs(observed - expected) <= tolerance ? ElementVerdict::fine : ElementVerdict::over_tolerance;
}

}  // namespace quire::numerics
