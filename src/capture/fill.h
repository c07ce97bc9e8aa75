// SPDX-License-Identifier: Apache-2.0
// Values of tensors: random numbers that are equal on every machine, and what must never be read (NaN, finite garbage, impossible
// page ids).
#pragma once

#include <algorithm>
#include <cstdint>

#include "quire/tensor.hpp"
#include "semantics/index_tensor.h"

namespace quire::capture {

/// Page id of unused table entries: in range for int32, but far outside any cache, so that a kernel which reads it is noticed.
inline constexpr std::int64_t kImpossiblePage = 2147480000;

/// Fills a contiguous floating tensor.
inline void fill_value(const Tensor& t, float value) {
  const std::int64_t count = t.num_elements();
  if (count == 0) return;
  semantics::store(t.data, t.dtype, 0, value);
  switch (itemsize(t.dtype)) {
    case 1: std::fill_n(static_cast<std::uint8_t*>(t.data), count, *static_cast<const std::uint8_t*>(t.data)); break;
    case 2: std::fill_n(static_cast<std::uint16_t*>(t.data), count, *static_cast<const std::uint16_t*>(t.data)); break;
    default: std::fill_n(static_cast<std::uint32_t*>(t.data), count, *static_cast<const std::uint32_t*>(t.data)); break;
  }
}

/// The NaN that every floating format keeps.
inline float quiet_nan() { return semantics::bits_to_float(0x7FC00000u); }

/// Fills a contiguous tensor with what must not be read: NaN, or the largest code of a type that has no NaN.
inline void fill_unread(const Tensor& t) {
  if (t.dtype == DType::fp8_e8m0 || is_four_bit(t.dtype) || t.dtype == DType::fp8_ds_mla) {
    // NaN, or -6 in both codes; of rows of fp8_ds_mla, NaN in each of the three parts.
    std::fill_n(static_cast<std::uint8_t*>(t.data), t.num_elements(), std::uint8_t{0xFF});
    return;
  }
  if (t.dtype != DType::i8) return fill_value(t, quiet_nan());
  std::fill_n(static_cast<std::int8_t*>(t.data), t.num_elements(), std::int8_t{-128});
}

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;

inline std::uint64_t mix64(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// An independent sequence for each (seed, what, which).
inline std::uint64_t stream(std::uint64_t seed, std::uint64_t what, std::uint64_t which) noexcept {
  return mix64(mix64(mix64(seed + kGolden) + what * kGolden) + which * kGolden);
}

/// Uniform 64 bits number `index` of a stream.
inline std::uint64_t uniform(std::uint64_t key, std::uint64_t index) noexcept { return mix64(key + (index + 1) * kGolden); }

/// N(0,1) number `index` of a stream: the centred sum of twelve 16-bit uniforms (mean 0, variance 1, |x| < 6). The usual
/// transforms need log and cos, whose last bits differ between libraries; this sum is an integer and exact in a float.
inline float normal(std::uint64_t key, std::uint64_t index) noexcept {
  constexpr std::int32_t kTwiceMean = 12 * 65535;
  std::int32_t sum = 0;
  for (std::uint64_t part = 0; part < 3; ++part) {
    const std::uint64_t bits = uniform(key, 3 * index + part);
    sum += static_cast<std::int32_t>((bits & 0xFFFFu) + (bits >> 16 & 0xFFFFu) + (bits >> 32 & 0xFFFFu) + (bits >> 48));
  }
  return static_cast<float>(2 * sum - kTwiceMean) * 0x1p-17f;
}

/// Number `index` of a stream, uniform in (-1e-3, 1e-3): an odd 25-bit integer, exact in a float, and one rounded product.
inline float tiny(std::uint64_t key, std::uint64_t index) noexcept {
  const auto odd = 2 * static_cast<std::int32_t>(uniform(key, index) >> 40) - ((1 << 24) - 1);
  return static_cast<float>(odd) * 0x1p-24f * 1e-3f;
}

}  // namespace quire::capture
