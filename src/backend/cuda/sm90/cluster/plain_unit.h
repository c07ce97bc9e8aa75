// SPDX-License-Identifier: Apache-2.0
// Products with units of a 16-bit cache: both take what the copies put in shared memory.
//
// Lane (g, c) = (lane / 4, lane % 4) has row g of the query, and of product i of the values the dims 8 i + 2 c and the next.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/sm90/cluster/memory.h"
#include "backend/cuda/tile/element.h"
#include "backend/gpu/args.h"

namespace quire::cuda::sm90::cluster {

/// T: type of query, cache and output.
template <typename T, int kDim>
struct PlainUnit {
  using Query = T;
  using Weight = T;
  using Memory = cluster::Memory<kDim, 2>;
  using Unit = typename Memory::Unit;
  static constexpr int kProducts = kDim / 8;
  using Words = std::uint32_t[kProducts];  ///< operand of the query for each product

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  /// The value of 1 in the row is returned. row: the first element of this lane's row; null if it does not exist.
  __device__ static float load_query(Words& words, const gpu::AttendArgs&, const Byte* row) {
    const auto* const pairs = reinterpret_cast<const std::uint32_t*>(row) + lane() % 4;
#pragma unroll
    for (int i = 0; i < kProducts; ++i) words[i] = row != nullptr ? pairs[i * 4] : 0;
    return 1.0f;
  }

  /// Adds dot products of row g and the keys 8 group + 2 c + {0, 1}. Two sums, of every second 16 dims: one alone would wait for
  /// itself.
  __device__ static void multiply_keys(float (&sums)[2][4], const Words& query, const Unit& unit, int group) {
#pragma unroll
    for (int i = 0; i < kProducts; i += 4) {
      std::uint32_t keys[4];
      ptx::load_matrices(keys, unit.keys.chunk(group * 8 + lane() % 8, i + lane() / 8));
      T::multiply(sums[0], {query[i], 0, query[i + 1], 0}, keys[0], keys[1]);
      T::multiply(sums[1], {query[i + 2], 0, query[i + 3], 0}, keys[2], keys[3]);
    }
  }
  __device__ static void multiply_values(float (&out)[kProducts][4], const std::uint32_t (&weights)[4], const Unit& unit) {
#pragma unroll
    for (int i = 0; i < kProducts; i += 2) {
      std::uint32_t values[4];
      ptx::load_matrices_transposed(values, unit.values.chunk(lane() % 16, i + lane() / 16));
      T::multiply(out[i], weights, values[0], values[1]);
      T::multiply(out[i + 1], weights, values[2], values[3]);
    }
  }
  /// The dims that the lane has of row g, to the row; whole(product, e): element e of a product.
  template <typename Whole>
  __device__ static void keep(float (&row)[kDim + 4], Whole&& whole) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i)
      *reinterpret_cast<float2*>(row + i * 8 + lane() % 4 * 2) = make_float2(whole(i, 0), whole(i, 1));
  }
};

}  // namespace quire::cuda::sm90::cluster
