// SPDX-License-Identifier: Apache-2.0
// Visibility: the keys that a query row sees. Kernels of causal rows at the end of their keys cut ranges and mask tiles by
// visible_range(). All other masks are a Mask (mask.h), which begins with how far a row sees (Reach).
//
// Positions count from the first key of a request: key j is at j, and row i at q_begin - key_begin + i, which may be negative or
// beyond the last key. Masks and distances depend on differences of positions alone, so global positions are not needed here.
#pragma once

#include <cstdint>
#include <type_traits>

#include "semantics/qualifiers.h"

namespace quire::semantics {

/// Key positions [begin, end).
template <class Int>
struct KeyRangeIn {
  Int begin = 0;
  Int end = 0;
};
using KeyRange = KeyRangeIn<std::int64_t>;

/// A row at position q sees the keys q - before to q + after, as far as they exist.
struct Reach {
  std::int64_t before = 0;
  std::int64_t after = 0;
};

/// Farther than any key is from any row: positions of keys are below 2^31, and of rows within +-2^31. Sums with it stay far from
/// overflow.
inline constexpr std::int64_t kAllKeys = std::int64_t{1} << 42;

/// window: keys visible up to the own one, which counts; <= 0 means all. window_right: keys visible after the own one, of rows
/// that are not causal; < 0 means all.
QUIRE_HD Reach reach_of(bool causal, std::int64_t window, std::int64_t window_right) {
  Reach reach;
  reach.before = window > 0 && window < kAllKeys ? window - 1 : kAllKeys;
  reach.after = causal ? 0 : window_right >= 0 && window_right < kAllKeys ? window_right : kAllKeys;
  return reach;
}

QUIRE_HD std::int64_t clamped_to(std::int64_t position, std::int64_t num_keys) {
  return position < 0 ? 0 : position > num_keys ? num_keys : position;
}

// The causal mask: ranges of causal rows at the end of their keys, where q_pos >= 0 and all keys up to q_pos exist. Int: 64 bits
// unless the caller says otherwise. Fewer are enough where q_pos + 1 and window fit them.

/// Keys visible to the query at position q_pos: k <= q_pos and q_pos - k < window. window <= 0 means no window.
template <class Int = std::int64_t>
QUIRE_HD KeyRangeIn<Int> visible_range(std::type_identity_t<Int> q_pos, std::type_identity_t<Int> window) {
  const Int end = q_pos + 1;
  const Int begin = window > 0 && end > window ? end - window : 0;
  return {begin, end};
}

/// Union over query positions [first, last]; contiguous because both ends grow with the position. The window comes by reference:
/// read where it is needed, it takes a device no register before.
template <class Int = std::int64_t>
QUIRE_HD KeyRangeIn<Int> visible_range(std::type_identity_t<Int> first, std::type_identity_t<Int> last,
                                       const std::type_identity_t<Int>& window) {
  const Int begin = window > 0 && first >= window ? first + 1 - window : 0;
  return {begin, last + 1};
}

}  // namespace quire::semantics
