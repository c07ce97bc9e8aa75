// SPDX-License-Identifier: Apache-2.0
// The 16-bit types of matrix operands: packing f32 pairs, and the product instruction of each.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/ptx.h"
#include "quire/tensor.hpp"

namespace quire::cuda::tile {

struct F16 {
  static constexpr DType kDType = DType::f16;
  /// Weights are made 2^14 times as large: what f16 cannot hold of them is then below 2^-38 of the largest.
  static constexpr float kWeightShift = 14.0f;
  static constexpr std::uint32_t kExponentMask = 0x7C00u;
  __device__ static std::uint32_t pack(float lo, float hi) {
    const __half2 pair = __floats2half2_rn(lo, hi);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ static float2 unpack(std::uint32_t word) { return __half22float2(reinterpret_cast<const __half2&>(word)); }
  __device__ static void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_f16(c, a, b0, b1);
  }
};

struct Bf16 {
  static constexpr DType kDType = DType::bf16;
  static constexpr float kWeightShift = 0.0f;
  static constexpr std::uint32_t kExponentMask = 0x7F80u;
  __device__ static std::uint32_t pack(float lo, float hi) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ static float2 unpack(std::uint32_t word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
  }
  __device__ static void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_bf16(c, a, b0, b1);
  }
};

/// A row of elements in f32, of which a lane has pairs from 2 lane + 64 i on.
template <typename T, int kCount>
__device__ inline void load_pairs(float (&to)[kCount], const void* data, std::int64_t row) {
  const auto* from = static_cast<const std::uint16_t*>(data) + row + threadIdx.x % 32 * 2;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float2 pair = T::unpack(*reinterpret_cast<const std::uint32_t*>(from + i * 64));
    to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
  }
}

}  // namespace quire::cuda::tile
