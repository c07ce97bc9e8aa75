// SPDX-License-Identifier: Apache-2.0
// Tiles of two neighbouring KV heads at head_dim 64: one decode row of each request, 16-bit caches in which a token's heads lie
// side by side (nhd).
//
// Rows of one head are 128 bytes, and memory is read in whole rows of a token only if another block reads the neighbouring head
// at the same time. A tile of both heads reads 256 bytes that lie side by side.
//
// The kernel sees half as many KV heads with twice the group (instances_head_pairs.cu): score rows [0, group / 2) are the first
// head's, the others the second one's. Each head's keys are multiplied with all rows, and each head's values with all weights.
// Columns of the other head's rows are left out afterwards: no product mixes heads, so an infinity or NaN reaches rows of its own
// head alone.
#pragma once

#include "backend/cuda/sm90/decode/plain_tiles.h"

namespace quire::cuda::sm90::decode {

/// A tile lies in shared memory as one of 128 dims does, the second head in the place of dims [64, 128).
template <typename T>
struct HeadPairTiles : PlainTiles<T, 128> {
  using Joined = PlainTiles<T, 128>;
  using typename Joined::Keys, typename Joined::Tile;
  static constexpr int kDim = 64, kHeads = 2;

  template <int kRows>
  static constexpr int groups() {
    return 1;
  }
  template <int kRows>
  static constexpr int blocks() {
    return 2;
  }

  template <bool kValues>
  __device__ static void copy_box(Tile& to, int row, int side, const CUtensorMap* map, hopper::Barrier* full, int token,
                                  int head_pair, int page) {
    hopper::copy_box_once(to.boxes[side] + row * Joined::kRowBytes, map, full, 0, token, kHeads * head_pair + side, page);
  }

  /// Adds the products of step `step` (16 dims of the query) with keys of head `head`; step 0 begins a sum.
  template <int kCount>
  __device__ static void multiply_keys(float (&s)[kCount], const Keys&, const Tile& k, std::uint64_t query, int head, int step) {
    const std::uint64_t keys = hopper::matrix<hopper::Swizzle::bytes128>(k.boxes[head], 8 * Joined::kRowBytes);
    hopper::wgmma<T::kDType == DType::f16, 0, 0>(s, hopper::advanced(keys, step * 32), query, step);
  }
};

}  // namespace quire::cuda::sm90::decode
