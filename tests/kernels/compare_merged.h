// SPDX-License-Identifier: Apache-2.0
// Comparison of a device's result for a MergeCase or a StackCase with fp64, element by element.
#pragma once

#include <array>
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

/// An element of a merged stack in fp64, and how far f32 may be off: each weight has an exponential of a difference (u |lse|
/// each), a sum of `parts` terms and a quotient; each element a sum of `parts` products.
struct MergedStack {
  double lse = -INFINITY, lse_tolerance = 0, value = 0, tolerance = 0;
};
inline MergedStack merged_stack(const Tensor& outs, const Tensor& lses, const std::array<std::int64_t, 3>& row_and_dim,
                                DType dtype) {
  constexpr double kUnit = 0x1p-24;
  const auto& [t, h, d] = row_and_dim;
  const std::int64_t parts = outs.shape[0];
  MergedStack e;
  double top = -INFINITY, sum = 0, largest = 0, terms = 0;
  for (std::int64_t i = 0; i < parts; ++i) top = std::max(top, at(lses, {i, t, h}));
  if (std::isinf(top)) return e;
  for (std::int64_t i = 0; i < parts; ++i) {
    const double lse = at(lses, {i, t, h});
    sum += std::exp(lse - top);
    if (!std::isinf(lse)) largest = std::max(largest, std::fabs(lse));
  }
  e.lse = top + std::log(sum);
  const double steps = 8.0 + 2.0 * static_cast<double>(parts);
  e.lse_tolerance = steps * kUnit * (1 + 2 * largest);
  for (std::int64_t i = 0; i < parts; ++i) {
    const double lse = at(lses, {i, t, h});
    if (std::isinf(lse)) continue;
    const double term = std::exp(lse - e.lse) * at(outs, {i, t, h, d});
    e.value += term;
    terms += std::fabs(term);
  }
  const double u = dtype == DType::f32 ? kUnit : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
  e.tolerance = (dtype == DType::f16 ? 0x1p-25 : 0x1p-134) + u * std::fabs(e.value) + steps * kUnit * (1 + 2 * largest) * terms;
  return e;
}

/// The first element that is further off than it may be, or nothing.
inline std::string compare_stack(const StackCase& c, const Tensor& out, const Tensor& lse) {
  for (std::int64_t t = 0; t < StackCase::kTokens; ++t)
    for (std::int64_t h = 0; h < StackCase::kHeads; ++h)
      for (std::int64_t d = 0; d < StackCase::kDim; ++d) {
        const MergedStack e = merged_stack(c.outs, c.lses, {t, h, d}, out.dtype);
        const double got = at(out, {t, h, d}), got_lse = at(lse, {t, h});
        const bool lse_right = got_lse == e.lse || std::fabs(got_lse - e.lse) <= e.lse_tolerance;
        if (!lse_right) return formatted("lse[{}, {}] is {}, expected {}", t, h, got_lse, e.lse);
        if (!(std::fabs(got - e.value) <= e.tolerance))
          return formatted("out[{}, {}, {}] is {}, expected {}", t, h, d, got, e.value);
      }
  return {};
}

}  // namespace quire::test
