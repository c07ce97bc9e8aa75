// SPDX-License-Identifier: Apache-2.0
// Comparison of a device's result for a MergeCase with fp64, element by element.
#pragma once

#include <cmath>
#include <string>

#include "kernels/move_cases.h"
#include "text/formatted.h"

namespace quire::test {

/// The first element that is further off than it may be, or nothing. Rows with an empty side are the other side, to the bit.
inline std::string compare_merged(const MergeCase& c, const Tensor& out, const Tensor& lse) {
  for (std::int64_t t = 0; t < MergeCase::kTokens; ++t)
    for (std::int64_t h = 0; h < MergeCase::kHeads; ++h) {
      const double a = at(c.lse_a, {t, h}), b = at(c.lse_b, {t, h});
      const bool a_empty = std::isinf(a) && a < 0, b_empty = std::isinf(b) && b < 0;
      const MergedLse merged(a, b);
      const double got_lse = at(lse, {t, h});
      const bool lse_right =
          a_empty || b_empty ? got_lse == std::max(a, b) : std::fabs(got_lse - merged.value) <= merged.tolerance;
      if (!lse_right) return formatted("lse[{}, {}] is {}, expected {}", t, h, got_lse, merged.value);
      for (std::int64_t d = 0; d < MergeCase::kDim; ++d) {
        const double x = at(c.out_a, {t, h, d}), y = at(c.out_b, {t, h, d}), got = at(out, {t, h, d});
        const double other = a_empty ? (b_empty ? 0.0 : y) : x;
        const bool right = a_empty || b_empty
                               ? got == other
                               : std::fabs(got - merged.element(x, y)) <= merged.element_tolerance(x, y, out.dtype);
        if (!right)
          return formatted("out[{}, {}, {}] is {}, expected {}", t, h, d, got, a_empty || b_empty ? other : merged.element(x, y));
      }
    }
  return {};
}

}  // namespace quire::test
