// SPDX-License-Identifier: Apache-2.0
// One lane of VDPBF16PS in portable arithmetic, to the bit (NaN payloads excepted).
#pragma once

#include <cmath>
#include <cstdint>

#include "semantics/fp8.h"

namespace quire::cpu {

/// Denormals become a zero of the same sign.
inline float flush_denormal(float x) {
  const std::uint32_t bits = semantics::float_to_bits(x);
  return (bits & 0x7F800000u) == 0 ? semantics::bits_to_float(bits & 0x80000000u) : x;
}

/// a * b + c with one rounding; zero if what was rounded, with no bound on the exponent, is below the normal numbers.
inline float flushed_fma(float a, float b, float c) {
  const float sum = std::fmaf(a, b, c);
  // fmaf rounds up to the smallest normal number on a coarser grid than the instruction does: ask again 64 binades higher.
  const bool smallest = std::fabs(sum) == 0x1p-126f;
  if (smallest && std::fabs(std::fmaf(a * 0x1p64f, b, c * 0x1p64f)) < 0x1p-62f) return std::copysign(0.0f, sum);
  return flush_denormal(sum);
}

/// c + a.odd * b.odd + a.even * b.even; `a` and `b` are pairs of bf16 values, the even one in the lower half.
inline float bf16_dot_model(float a, float b, float c) {
  const std::uint32_t x = semantics::float_to_bits(a), y = semantics::float_to_bits(b);
  const auto upper = [](std::uint32_t pair) { return flush_denormal(semantics::bits_to_float(pair & 0xFFFF0000u)); };
  const auto lower = [](std::uint32_t pair) { return flush_denormal(semantics::bits_to_float(pair << 16)); };
  const float odd = flushed_fma(upper(x), upper(y), flush_denormal(c));
  return flushed_fma(lower(x), lower(y), odd);
}

}  // namespace quire::cpu
