// SPDX-License-Identifier: Apache-2.0
// Products with units of an fp8 cache: codes become f16 between shared memory and the products. Every e4m3fn and e5m2 value is an
// f16, so nothing is lost. A bf16 query becomes f16, too (query_to_f16.h).
//
// ldmatrix gives lane (g, c) 4 neighbouring codes of key g where 16-bit keys would be 2 elements, and codes of the keys 2 c and
// 2 c + 1 and the dims 2 g and 2 g + 1 where 16-bit values would be those of one dim. So the dims of products have another order
// than in the cache: product 2 i of the keys has dims 16 i + 4 c + {0, 1}, and product 2 i + 1 dims 16 i + 4 c + {2, 3}; product
// 2 i of the values has even dims, and product 2 i + 1 odd ones.
#pragma once

#include "backend/cuda/sm90/cluster/plain_unit.h"
#include "backend/cuda/sm90/query_to_f16.h"
#include "backend/cuda/tile/convert_fp8.h"

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
  __device__ static std::uint32_t pair(std::uint32_t codes, int half, bool e4m3 = kE4m3) {
    return tile::convert_pair<tile::F16>(static_cast<std::uint16_t>(codes >> half * 16), e4m3);
  }

  __device__ static float load_query(Words& words, const gpu::AttendArgs& a, const Byte* row) {
    const bool codes = T::kDType == DType::f16 && a.query.dtype == DType::fp8_e4m3fn;
#pragma unroll
    for (int i = 0; i < kProducts / 2; ++i) {
      const int quad = i * 4 + lane() % 4;  // of four dims
      uint2 dims{};
      if (row != nullptr && codes) {
        const std::uint32_t four = reinterpret_cast<const std::uint32_t*>(row)[quad];
        dims = {pair(four, 0, true), pair(four, 1, true)};
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
      for (int j = 0; j < 4; ++j)
        Weight::multiply(sums[j % 2], {query[2 * (i + j)], 0, query[2 * (i + j) + 1], 0}, pair(keys[j], 0), pair(keys[j], 1));
    }
  }
  __device__ static void multiply_values(float (&out)[kProducts][4], const std::uint32_t (&weights)[4], const Unit& unit) {
    const auto by_dim = [](std::uint32_t codes) { return __byte_perm(codes, 0, 0x3120); };  // two keys of a dim, and of the next
#pragma unroll
    for (int i = 0; i < kProducts / 2; i += 2) {
      std::uint32_t values[4];
      ptx::load_matrices_transposed(values, unit.values.chunk(lane() % 16, i + lane() / 16));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t low = by_dim(values[2 * j]), high = by_dim(values[2 * j + 1]);
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) Weight::multiply(out[2 * (i + j) + odd], weights, pair(low, odd), pair(high, odd));
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
