// SPDX-License-Identifier: Apache-2.0
// Which keys a query row sees. The only place in Quire's kernels that knows causality and the sliding window.
#pragma once

#include <cstdint>

#include "semantics/host_device.h"

namespace quire::semantics {

/// Key positions [begin, end).
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Keys visible to the query at position q_pos: k <= q_pos and q_pos - k < window. window <= 0 means no window.
QUIRE_HD KeyRange visible_range(std::int64_t q_pos, std::int64_t window) {
  const std::int64_t end = q_pos + 1;
  const std::int64_t begin = window > 0 && end > window ? end - window : 0;
  return {begin, end};
}

/// Union over query positions [first, last]; contiguous because both ends grow with the position.
QUIRE_HD KeyRange visible_range(std::int64_t first, std::int64_t last, std::int64_t window) {
  return {visible_range(first, window).begin, last + 1};
}

}  // namespace quire::semantics
