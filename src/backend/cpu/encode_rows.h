// SPDX-License-Identifier: Apache-2.0
// Stage: append. Rows of bf16 or f32 as fp8 or i8 codes, in loops without branches that compilers turn into vectors. A code is
// that of semantics::fp8_encode() or i8_encode() (tests/cpu/encode_rows_test.cpp compares them).
#pragma once

#include <algorithm>
#include <cstdint>

#include "quire/tensor.hpp"
#include "semantics/fp8.h"

namespace quire::cpu {

/// semantics::fp8_encode() without branches. The sum with 2^23 rounds to nearest even, the mode that all of Quire assumes.
template <typename Format>
std::uint8_t encode_plainly(float value) {
  constexpr int m_bits = Format::kMantissaBits, shift = 23 - m_bits;
  constexpr std::int32_t bias_codes = (127 - Format::kExponentBias) << m_bits, least_normal = (128 - Format::kExponentBias) << 23;
  constexpr float kInteger = 8388608.0f;  // 2^23: floats from here to 2^24 are the integers
  const auto bits = static_cast<std::int32_t>(semantics::float_to_bits(value));
  const std::int32_t magnitude = bits & 0x7FFFFFFF, sign = bits >> 24 & 0x80;
  const auto sum =
      static_cast<std::uint32_t>(magnitude) + ((1u << (shift - 1)) - 1) + (magnitude >> shift & 1);  // NaNs pass 2^31
  const auto rounded = static_cast<std::int32_t>(sum >> shift);
  const float scaled = semantics::bits_to_float(static_cast<std::uint32_t>(std::min(magnitude, least_normal))) *
                       semantics::exact_power_of_two(Format::kExponentBias + m_bits - 1);
  const auto small = static_cast<std::int32_t>(semantics::float_to_bits(scaled + kInteger) - semantics::float_to_bits(kInteger));
  const std::int32_t code =
      magnitude < least_normal ? small : std::min(rounded - bias_codes, std::int32_t{Format::kLargestFinite});
  const std::int32_t finite = Format::kIsFnuz && code == 0 ? 0 : sign | code;
  const std::int32_t nan = Format::kIsFnuz ? 0x80 : sign | 0x7F;
  return static_cast<std::uint8_t>(magnitude > 0x7F800000 ? nan : finite);
}

/// semantics::i8_encode() without branches: NaN fails both comparisons of the first line.
inline std::uint8_t encode_i8_plainly(float value) {
  const float number = value >= -127.0f ? value : value < -127.0f ? -127.0f : 0.0f;
  constexpr float kIntegers = 12582912.0f;  // 1.5 * 2^23: sums with it are rounded to whole numbers
  return static_cast<std::uint8_t>(semantics::float_to_bits(std::min(number, 127.0f) + kIntegers));
}

template <typename Format>
void encode_floats(const float* from, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = encode_plainly<Format>(from[i]);
}

/// `count` elements that lie side by side, divided by `scale` (1: not divided), as codes of `type`. False, and nothing is
/// written, for other types of either.
inline bool encode_row(const void* from, DType from_type, std::int64_t count, float scale, DType type, std::uint8_t* to) {
  constexpr std::int64_t kStep = 64;
  if ((from_type != DType::bf16 && from_type != DType::f32) || !is_code(type)) return false;
  for (std::int64_t done = 0; done < count; done += kStep) {
    const std::int64_t n = std::min(kStep, count - done);
    float values[kStep];
    if (from_type == DType::bf16) {
      const auto* words = static_cast<const std::uint16_t*>(from) + done;
      for (std::int64_t i = 0; i < n; ++i) values[i] = semantics::bits_to_float(static_cast<std::uint32_t>(words[i]) << 16);
    } else {
      std::copy_n(static_cast<const float*>(from) + done, n, values);
    }
    if (scale != 1.0f)
      for (std::int64_t i = 0; i < n; ++i) values[i] /= scale;
    switch (type) {
      case DType::i8:
        for (std::int64_t i = 0; i < n; ++i) to[done + i] = encode_i8_plainly(values[i]);
        break;
      case DType::fp8_e4m3fn: encode_floats<semantics::E4m3fn>(values, n, to + done); break;
      case DType::fp8_e4m3fnuz: encode_floats<semantics::E4m3fnuz>(values, n, to + done); break;
      case DType::fp8_e5m2: encode_floats<semantics::E5m2>(values, n, to + done); break;
      default: encode_floats<semantics::E5m2fnuz>(values, n, to + done);
    }
  }
  return true;
}

}  // namespace quire::cpu
