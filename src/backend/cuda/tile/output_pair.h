// SPDX-License-Identifier: Apache-2.0
// Pairs of results as elements of the output: of the query's type; under an fp8 query of either 16-bit type; or as 8-bit codes,
// which saturate (decision 20).
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/tile/element.h"
#include "backend/gpu/args.h"

namespace quire::cuda::tile {

/// Types of output that a piece of code writes: the type of its products alone, or any. Short calls are bound by instruction
/// count, so code that most calls execute has no branch for other types.
enum class Output { own, any };

template <typename T>
__device__ inline bool is_own_output(const gpu::AttendArgs& a) {
  return a.output_dtype == T::kDType;
}
__device__ inline bool writes_codes(const gpu::AttendArgs& a) { return a.output_dtype == DType::fp8_e4m3fn; }

/// Packs two outputs of 16 bits. T: type of the products, which is f16 under an fp8 query.
template <typename T, Output kOutput>
__device__ inline std::uint32_t pack_output(const gpu::AttendArgs& a, float x, float y) {
  if constexpr (kOutput == Output::any && T::kDType == DType::f16)
    if (a.output_dtype == DType::bf16) return Bf16::pack(x, y);
  return T::pack(x, y);
}
/// Packs two outputs of 8 bits.
__device__ inline std::uint16_t pack_codes(float x, float y) {
  return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
}

/// Elements `at` and at + stride. `one_word`: they are neighbours, and a word of their own.
template <typename T, Output kOutput>
__device__ inline void store_pair(const gpu::AttendArgs& a, std::int64_t at, std::int64_t stride, bool one_word, float x,
                                  float y) {
  if (kOutput == Output::any && writes_codes(a)) {
    const std::uint16_t pair = pack_codes(x, y);
    auto* const to = static_cast<std::uint8_t*>(a.output) + at;
    if (one_word)
      *reinterpret_cast<std::uint16_t*>(to) = pair;
    else
      to[0] = static_cast<std::uint8_t>(pair), to[stride] = static_cast<std::uint8_t>(pair >> 8);
    return;
  }
  const std::uint32_t pair = pack_output<T, kOutput>(a, x, y);
  auto* const to = static_cast<std::uint16_t*>(a.output) + at;
  if (one_word)
    *reinterpret_cast<std::uint32_t*>(to) = pair;
  else
    to[0] = static_cast<std::uint16_t>(pair), to[stride] = static_cast<std::uint16_t>(pair >> 16);
}

}  // namespace quire::cuda::tile
