// SPDX-License-Identifier: Apache-2.0
// Random numbers that every compiler and machine agrees on: integer arithmetic only, one value per counter, no state.
//
// mix64 is the finaliser of splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
#pragma once

#include <cstdint>

namespace quire::capture {

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
