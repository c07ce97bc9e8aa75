// SPDX-License-Identifier: Apache-2.0
// See duration.h.
#include "text/duration.h"

#include <cmath>

#include "text/formatted.h"

namespace quire {

std::string duration_error(double value, double least) {
  if (std::isfinite(value) && value >= least) return {};
  return formatted("{}, expected a finite number >= {}", value, least);
}

}  // namespace quire
