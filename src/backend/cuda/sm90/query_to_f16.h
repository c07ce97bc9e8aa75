// SPDX-License-Identifier: Apache-2.0
// Rows of a bf16 query as f16, so that codes of an fp8 cache have to become nothing else: one instruction makes f16 of a pair of
// them, and four make bf16.
//
// A row is multiplied by the power of two that brings its largest finite element to [2^14, 2^15), and its dot products by the
// inverse. bf16 has 8 significant bits and f16 has steps of 2^-24: elements down to 2^-31 of the row's largest are exact, and
// what smaller ones lose is below 2^-39 of it, in a dot product 2^-39 max |q| sum |k|. A product in f32 loses 2^-24 of its
// largest term, which is more unless keys are 2^-15 of their sum or less, or 0, where the row is largest. Zeros, infinities and
// NaN stay what they are.
#pragma once

#include <cstdint>

#include "backend/cuda/tile/element.h"

namespace quire::cuda::sm90 {

/// The row's power of two, for pairs of its dims in each of kLanes neighbouring lanes.
template <int kLanes, int kPairs>
__device__ inline float factor_to_f16(const std::uint32_t (&pairs)[kPairs]) {
  constexpr std::uint32_t kExponents = tile::Bf16::kExponentMask << 16 | tile::Bf16::kExponentMask;
  std::uint32_t largest = 0;  // each 16-bit half holds a maximum of its own
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const std::uint32_t exponents = pairs[i] & kExponents;
    largest = __vmaxu2(largest, exponents & ~__vcmpeq2(exponents, kExponents));
  }
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, mask));
  const std::uint32_t exponent = max(largest >> 16, largest & 0xFFFFu) >> 7;
  return __uint_as_float(min(127u + 14u + 127u - exponent, 253u) << 23);  // the limit is 2^126: its inverse is a normal number
}

/// 1 / factor, for powers of two.
__device__ inline float inverse_power(float factor) { return __uint_as_float((254u << 23) - __float_as_uint(factor)); }

__device__ inline std::uint32_t pair_to_f16(std::uint32_t pair, float factor) {
  const float2 values = tile::Bf16::unpack(pair);
  return tile::F16::pack(values.x * factor, values.y * factor);
}

}  // namespace quire::cuda::sm90
