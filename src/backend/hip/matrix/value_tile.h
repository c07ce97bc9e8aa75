// SPDX-License-Identifier: Apache-2.0
// A tile of V in shared memory, transposed on its way there: an operand needs neighbouring keys of one dim in one register.
//
// values[quad * kColumns + column] holds one dim of keys 4 * quad to 4 * quad + 3. Neighbouring dims of a chunk are 16 columns
// apart, so that lanes with neighbouring chunks write neighbouring columns, and lanes of a product read neighbouring columns. So
// row r of the product's block b is dim r * (head_dim / 16) + b, and what a lane sums of a row are neighbouring dims.
#pragma once

#include "backend/hip/matrix/lane_rows.h"
#include "backend/hip/matrix/segments.h"

namespace quire::hip::matrix {

using Quad = Words<2>;  ///< four keys of one dim

/// Element i of a chunk of each of two keys.
template <int kWords>
QUIRE_DEVICE std::uint32_t pair_of(const Words<kWords>& first, const Words<kWords>& second, int i) {
  const std::uint32_t x = first.word[i / 2], y = second.word[i / 2];
  return i % 2 == 0 ? (x & 0xFFFFu) | y << 16 : x >> 16 | (y & 0xFFFF0000u);
}

/// Neighbouring dims of the four keys of a quad; `to` is the column of the first.
template <int kWords>
QUIRE_DEVICE void store_quad(Quad* to, const Words<kWords>& key0, const Words<kWords>& key1, const Words<kWords>& key2,
                             const Words<kWords>& key3) {
  QUIRE_UNROLL
  for (int i = 0; i < 2 * kWords; ++i) to[i * kChunks] = {pair_of(key0, key1, i), pair_of(key2, key3, i)};
}

/// Operand of 16 keys and 16 dims. `mine` is the lane's place in the first of them, lane_values().
template <class Gpu, int kColumns>
QUIRE_DEVICE typename Gpu::Operand load_values(const Quad* mine, int key_block, int dim_block) {
  typename Gpu::Operand v;
  QUIRE_UNROLL
  for (int q = 0; q < Gpu::kQuads; ++q) {
    const Quad quad = mine[(key_block * (kBlockKeys / 4) + q) * kColumns + dim_block * 16];
    v.word[2 * q] = quad.word[0];
    v.word[2 * q + 1] = quad.word[1];
  }
  return v;
}
template <class Gpu, int kColumns>
QUIRE_DEVICE const Quad* lane_values(const Quad* values, int group) {
  return values + Gpu::first_quad(group) * kColumns + lane_row();
}

/// Keys [begin, end) of a tile.
struct TileRange {
  int begin = 0, end = 0;
};

/// What the row sees of the segment's part of the tile at `first`.
QUIRE_DEVICE TileRange visible_keys(const LaneRow& row, const Segment& segment, int first, int tile_keys) {
  const int begin = row.begin > segment.begin ? row.begin : segment.begin, end = row.end < segment.end ? row.end : segment.end;
  return {begin > first ? begin - first : 0, end < first + tile_keys ? end - first : tile_keys};
}

template <class T>
QUIRE_DEVICE bool is_non_finite(std::uint32_t element) {
  return (element & T::kExponentMask) == T::kExponentMask;
}

/// Adds the infinities and NaN among the values of these keys of the tile to the lane's row, for a tile whose product will leave
/// them out. exp(s - m) is positive, so the value itself is what its product with the weight amounts to.
template <class Gpu, class T, int kColumns, int kBlocks>
QUIRE_DEVICE void add_non_finite(RowSums<Gpu, kBlocks>& to, const Quad* values, const TileRange& keys) {
  const int group = lane_group<Gpu>();
  QUIRE_NO_UNROLL
  for (int key = keys.begin; key < keys.end; ++key) QUIRE_UNROLL
  for (int b = 0; b < kBlocks; ++b) QUIRE_UNROLL
  for (int i = 0; i < Gpu::kSums; ++i) {
    const Quad quad = values[key / 4 * kColumns + b * 16 + Gpu::sum_row(group, i)];
    const std::uint32_t pair = key % 4 < 2 ? quad.word[0] : quad.word[1];
    const std::uint32_t element = (key % 2 == 0 ? pair : pair >> 16) & 0xFFFFu;
    if (is_non_finite<T>(element)) to.acc[b].x[i] += T::decode(element);
  }
}

/// Threads `index`, index + threads, ... of those that share the tile.
template <class T>
QUIRE_DEVICE void zero_non_finite(Quad* values, int count, int index, int threads) {
  QUIRE_NO_UNROLL
  for (int i = index; i < count; i += threads) QUIRE_UNROLL
  for (int w = 0; w < 2; ++w) {
    std::uint32_t pair = values[i].word[w];
    if (is_non_finite<T>(pair)) pair &= 0xFFFF0000u;
    if (is_non_finite<T>(pair >> 16)) pair &= 0xFFFFu;
    values[i].word[w] = pair;
  }
}

}  // namespace quire::hip::matrix
