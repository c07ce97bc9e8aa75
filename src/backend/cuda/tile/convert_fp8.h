// SPDX-License-Identifier: Apache-2.0
// fp8 rows to 16-bit operands, exactly: every value of the two OCP formats is an f16 and a bf16.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/tile/element.h"
#include "backend/cuda/tile/pitch.h"

namespace quire::cuda::tile {

/// Two neighbouring codes to two 16-bit elements.
template <typename T>
__device__ inline std::uint32_t convert_pair(std::uint16_t codes, bool e4m3) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(codes, e4m3 ? __NV_E4M3 : __NV_E5M2);
  if constexpr (T::kDType == DType::f16) return halves.x | static_cast<std::uint32_t>(halves.y) << 16;
  const float2 values = __half22float2(__half2(halves));
  return T::pack(values.x, values.y);
}

/// Four e4m3fn (e5m2) codes as two pairs of f16. Halves are named in PTX, as ptxas makes an instruction of each that C++ shifts
/// to its place.
template <bool kE4m3>
__device__ inline void convert_four(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
  if constexpr (kE4m3)
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
  else
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e5m2x2 %0, l;\ncvt.rn.f16x2.e5m2x2 %1, h;\n}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
}

/// 16 codes as 16-bit elements.
struct Chunk16 {
  uint4 low, high;
};
template <typename T>
__device__ inline Chunk16 convert_chunk(const unsigned char* codes, bool e4m3) {
  const uint4 raw = *reinterpret_cast<const uint4*>(codes);
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  std::uint32_t pairs[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) pairs[j] = convert_pair<T>(static_cast<std::uint16_t>(words[j / 2] >> j % 2 * 16), e4m3);
  return {make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]), make_uint4(pairs[4], pairs[5], pairs[6], pairs[7])};
}

/// kKeys rows of kDim codes, back to back, to a 16-bit tile; by threads 0 .. kThreads - 1 of a group.
template <typename T, int kDim, int kKeys, int kThreads>
__device__ inline void convert_tile(std::uint16_t* tile, const unsigned char* codes, bool e4m3, int thread) {
  constexpr int kChunks = kDim / 16;
#pragma unroll
  for (int i = 0; i < kKeys * kChunks; i += kThreads) {
    const int at = i + thread, key = at / kChunks, chunk = at % kChunks;
    const Chunk16 pairs = convert_chunk<T>(codes + at * 16, e4m3);
    auto* to = reinterpret_cast<uint4*>(tile + in_tile<kDim>(key, 2 * chunk));
    to[0] = pairs.low;
    to[1] = pairs.high;
  }
}

}  // namespace quire::cuda::tile
