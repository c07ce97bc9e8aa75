// SPDX-License-Identifier: Apache-2.0
// Steps of the kernels that tests/injection makes wrong. A kernel is a template on them (V::Faults); those that are built into
// the library have NoFaults, which is each step as it should be and leaves no code behind.
//
// Most faults need no step here: a kernel that ignores the sinks is a kernel that is given none, so the test changes what a right
// kernel is given or what it wrote. See docs/decisions/0028-faults-are-a-policy.md.
#pragma once

#include <cstdint>

namespace quire::cpu {

struct NoFaults {
  /// Scales belong to cached rows; this step's rows have none.
  static bool is_scaled(bool fresh) { return !fresh; }
  /// Position from which the ALiBi distances of row m of an item count: its own.
  template <class View>
  static std::int64_t alibi_origin(const View& v, std::int64_t m) {
    return v.q_pos(m);
  }
  /// Accumulator or state of a new segment, where the segment before it left `left`.
  template <class T>
  static T at_start(const T& /*left*/) {
    return T{};
  }
  /// Factor of sums so far, where a tile raised the maximum.
  static float correction(float factor) { return factor; }
  /// Factor of earlier segments in a merge.
  static float weight_of_earlier(float weight) { return weight; }
  /// Whether all values are finite, so that a row may multiply those that it does not see by 0.
  static bool is_finite(bool finite) { return finite; }
};

}  // namespace quire::cpu
