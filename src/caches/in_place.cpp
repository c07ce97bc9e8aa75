// SPDX-License-Identifier: Apache-2.0
// See in_place.h.
#include "caches/in_place.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace quire::caches {
namespace {

/// One step of a type relative to a number: twice the relative error of a rounding to nearest. 8-bit integers step by 1/127 of
/// the largest of a row, which is at most 4 times the mean of N(0, 1) data; e2m1 steps from 4 to 6, and to 1 below 2.
double step_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return 0x1p-23;
    case DType::f16: return 0x1p-10;
    case DType::bf16: return 0x1p-7;
    case DType::i8: return 0x1p-5;
    case DType::fp8_e4m3fn:
    case DType::fp8_e4m3fnuz:
    case DType::fp8_ds_mla: return 0x1p-3;
    default: return 0x1p-2;
  }
}

/// Rows of fewer dims are multiples of each other too often by chance.
constexpr std::size_t kFewDims = 8;

/// Whether dim d of A is dim to(d) of B, for all of them.
bool stands_at(std::span<const double> a, std::span<const double> b, const std::function<std::size_t(std::size_t)>& to) {
  for (std::size_t d = 0; d < a.size(); ++d)
    if (a[d] != b[to(d)]) return false;
  return true;
}

Found order_of(std::span<const double> a, std::span<const double> b) {
  const std::size_t n = a.size(), half = n / 2;
  for (std::size_t by = 1; by < n; ++by)
    if (stands_at(a, b, [&](std::size_t d) { return (d + by) % n; }))
      return {.what = InPlace::rotated, .by = static_cast<std::int64_t>(by)};
  if (stands_at(a, b, [&](std::size_t d) { return n - 1 - d; })) return {.what = InPlace::reversed};
  if (n % 2 == 0 && stands_at(a, b, [&](std::size_t d) { return d % half * 2 + d / half; }))
    return {.what = InPlace::interleaved};
  if (n % 2 == 0 && stands_at(a, b, [&](std::size_t d) { return d / 2 + d % 2 * half; })) return {.what = InPlace::halved};
  return {.what = InPlace::permuted};
}

double product(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

}  // namespace

double rounding_of(DType a, DType b) noexcept { return std::max(step_of(a), step_of(b)); }

Found in_place(std::span<const double> a, std::span<const double> b, double rounding) {
  const auto is_nan = [](double x) { return std::isnan(x); };
  if (std::any_of(b.begin(), b.end(), is_nan) && std::none_of(a.begin(), a.end(), is_nan)) return {.what = InPlace::nan};
  const double aa = product(a, a), bb = product(b, b), ab = product(a, b);
  if (bb == 0) return {.what = InPlace::zeros};
  if (!(aa > 0) || !std::isfinite(aa) || !std::isfinite(bb)) return {};
  std::vector<double> sorted_a(a.begin(), a.end()), sorted_b(b.begin(), b.end());
  std::sort(sorted_a.begin(), sorted_a.end());
  std::sort(sorted_b.begin(), sorted_b.end());
  if (sorted_a == sorted_b) return order_of(a, b);
  // The best factor in the least-squares sense; what it leaves is rounding, or b is no multiple of a.
  const double factor = ab / aa, rest = std::max(0.0, bb - ab * ab / aa);
  if (a.size() < kFewDims || rest > rounding * rounding * bb) return {};
  if (std::fabs(factor - 1) <= rounding) return {.what = InPlace::rounded};
  return {.what = InPlace::scaled, .factor = factor};
}

}  // namespace quire::caches
