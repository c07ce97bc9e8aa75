// SPDX-License-Identifier: Apache-2.0
// Products with units of an fp8 cache: codes become f16 between shared memory and the products. Every e4m3fn and e5m2 value is an
// f16, so nothing is lost. A bf16 query becomes f16, too (query_to_f16.h). One instruction makes f16 of two codes: of e4m3fn cvt,
// which is as fast as an integer instruction and knows NaN, of e5m2 a permutation of bytes (e5m2_bytes.h).
//
// ldmatrix gives lane (g, c) 4 neighbouring codes of key g where 16-bit keys would be 2 elements, and codes of the keys 2 c and
// 2 c + 1 and the dims 2 g and 2 g + 1 where 16-bit values would be those of one dim. So the dims of products have another order
// than in the cache: product 2 i of the keys has dims 16 i + 4 c + {0, 1}, and product 2 i + 1 dims 16 i + 4 c + {2, 3}; product
// 2 i of the values has even dims, and product 2 i + 1 odd ones.
#pragma once

#include "backend/cuda/sm90/cluster/plain_unit.h"
#include "backend/cuda/sm90/query_to_f16.h"
#include "backend/cuda/tile/convert_fp8.h"
#include "backend/cuda/tile/e5m2_bytes.h"

namespace quire::cuda::sm90::cluster {

/// T: type of query and output; under f16 the query may be e4m3fn codes. kE4m3: the cache's codes are, too; else they are e5m2.
template <typename T, int kDim, bool kE4m3>
struct CodeUnit {
  using Query = T;
  using Weight = tile::F16;
  using Memory = cluster::Memory<kDim, 1>;
  using Unit = typename Memory::Unit;
  static constexpr int kProducts = kDim / 8;
  using Words = std::uint32_t[kProducts];

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// Two pairs of f16: of the codes at bytes 0 and kSecond (1 or 2), and of the two others.
  template <int kSecond>
  __device__ static uint2 pairs(std::uint32_t codes) {
    uint2 of;
    if constexpr (kE4m3)
      tile::convert_four<true>(kSecond == 1 ? codes : __byte_perm(codes, 0, 0x3120), of.x, of.y);
    else
      of = {__byte_perm(codes, 0, tile::kE5m2Selector<0, kSecond>), __byte_perm(codes, 0, tile::kE5m2Selector<3 - kSecond, 3>)};
    return of;
  }

  __device__ static float load_query(Words& words, const gpu::AttendArgs& a, const Byte* row) {
    const bool codes = T::kDType == DType::f16 && a.query.dtype == DType::fp8_e4m3fn;
#pragma unroll
    for (int i = 0; i < kProducts / 2; ++i) {
      const int quad = i * 4 + lane() % 4;  // index of a group of four dims
      uint2 dims{};
      if (row != nullptr && codes) {
        tile::convert_four<true>(reinterpret_cast<const std::uint32_t*>(row)[quad], dims.x, dims.y);
      } else if (row != nullptr) {
        dims = reinterpret_cast<const uint2*>(row)[quad];
      }
      words[2 * i] = dims.x, words[2 * i + 1] = dims.y;
    }
    if constexpr (T::kDType == DType::f16) return 1.0f;
    const float factor = factor_to_f16<4>(words);
#pragma unroll
    for (int i = 0; i < kProducts; ++i) words[i] = pair_to_f16(words[i], factor);
    return inverse_power(factor);
  }

  __device__ static void multiply_keys(float (&sums)[2][4], const Words& query, const Unit& unit, int group) {
#pragma unroll
    for (int i = 0; i < kProducts / 2; i += 4) {
      std::uint32_t keys[4];
      ptx::load_matrices(keys, unit.keys.chunk(group * 8 + lane() % 8, i + lane() / 8));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 dims = pairs<1>(keys[j]);
        Weight::multiply(sums[j % 2], {query[2 * (i + j)], 0, query[2 * (i + j) + 1], 0}, dims.x, dims.y);
      }
    }
  }
  __device__ static void multiply_values(float (&out)[kProducts][4], const std::uint32_t (&weights)[4], const Unit& unit) {
#pragma unroll
    for (int i = 0; i < kProducts / 2; i += 2) {
      std::uint32_t values[4];
      ptx::load_matrices_transposed(values, unit.values.chunk(lane() % 16, i + lane() / 16));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint2 low = pairs<2>(values[2 * j]), high = pairs<2>(values[2 * j + 1]);  // two keys of neighbouring dims
        Weight::multiply(out[2 * (i + j)], weights, low.x, high.x);
        Weight::multiply(out[2 * (i + j) + 1], weights, low.y, high.y);
      }
    }
  }
  template <typename Whole>
  __device__ static void keep(float (&row)[kDim + 4], Whole&& whole) {
#pragma unroll
    for (int i = 0; i < kProducts; i += 2)
      *reinterpret_cast<float4*>(row + i * 8 + lane() % 4 * 4) =
          make_float4(whole(i, 0), whole(i + 1, 0), whole(i, 1), whole(i + 1, 1));
  }
};

}  // namespace quire::cuda::sm90::cluster
