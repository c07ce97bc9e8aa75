// SPDX-License-Identifier: Apache-2.0
// Stage: attend. A tile of keys and values as panels: the right-hand sides of the two products, contiguous in the order of their
// use.
//
//   K: [key block of kCols vectors][head_dim][keys of the block]     S = Q K^T walks head_dim, lanes are keys
//      (kernels with dot products of bf16 pairs: [head_dim / 2], an element is a pair)
//   V: [dim block][key][dims of the block]                           acc += P V walks keys, lanes are dims
//
// A tile is packed once for all score rows of the item. A key whose values are not all finite is set aside: its row in the V
// panels is zero, so that rows which do not see it may multiply it by weight 0; rows that see it add it afterwards.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_tile.h"
#include "backend/cpu/direct_rows.h"
#include "backend/cpu/elements.h"
#include "backend/cpu/item_view.h"
#include "backend/cpu/tile_scales.h"

namespace quire::cpu {
namespace {

/// Keys of one tile whose value rows were set aside, relative to the tile, in order.
struct SetAside {
  std::int64_t keys[kMaxTileKv];
  std::int64_t count = 0;
};

inline float scale_of_head(const float* scales, std::int64_t stride, std::int64_t head) {
  return scales != nullptr ? scales[head * stride] : 1.0f;
}

/// Factor of the scores of cached keys beside softmax_scale. Queries with a scale have no other keys.
inline float key_scale(const ItemView& v) {
  const AttendArgs& a = v.args;
  return scale_of_head(a.k_scale, a.k_scale_stride, v.item.kv_head) * scale_of_head(a.q_scale, a.q_scale_stride, v.item.kv_head);
}

inline KvRows kv_rows(const ItemView& v) { return {v.item.req, v.item.kv_head}; }

/// Vectors in the dim block that starts `left` vectors before the end of a row: kCols, at the end of a row 2 or 1.
template <class V>
constexpr int block_vectors(std::int64_t left) {
  return left >= V::kCols ? V::kCols : left >= 2 ? 2 : 1;
}

/// Keys [begin, end) of the tile that starts at tile_begin into the K panels; keys beside them in the same vector become zero.
template <class V>
void pack_keys(const ItemView& v, std::int64_t tile_begin, std::int64_t begin, std::int64_t end, const TileScales& scales) {
  const AttendArgs& a = v.args;
  const float scale = key_scale(v);
  constexpr std::int64_t kBlock = V::kCols * V::kWidth;
  const std::int64_t floats = key_floats<V>(a);
  const auto transpose_vector = [&](std::int64_t first) {  // the kWidth keys from `first` on, relative to the tile
    float* panel = v.k_panel + first / kBlock * kBlock * v.stride + first % kBlock;
    for (std::int64_t d = 0; d < floats; d += V::kWidth) transpose_block<V>(v.staging + d, v.stride, panel + d * kBlock, kBlock);
  };
  const auto clear = [&](std::int64_t from, std::int64_t to) {  // rows of the staging block
    for (std::int64_t i = from * v.stride; i < to * v.stride; ++i) v.staging[i] = 0.0f;
  };
  clear(0, (begin - tile_begin) % V::kWidth);
  for_each_row(a, kv_rows(v), a.cache_k, a.key, begin, end,
               [&](std::int64_t position, const RowSource& source, std::int64_t offset, bool fresh) {
                 const std::int64_t j = position - tile_begin, lane = j % V::kWidth;
                 load_key<V>(v.staging + lane * v.stride, /*temp=*/v.v_panel, source, offset, a,
                             V::Faults::is_scaled(fresh) ? scale * scales.of_key(j) : 1.0f);
                 if (lane + 1 == V::kWidth) transpose_vector(j - lane);
               });
  const std::int64_t rest = (end - tile_begin) % V::kWidth;
  if (rest == 0) return;
  clear(rest, V::kWidth);
  transpose_vector(end - tile_begin - rest);
}

/// kWidth keys, whose rows are read in place, into a K panel: dims [d, floats), kBlock apart. bf16 takes turns of two vectors of
/// dims: neighbours share a word while rows become columns, which halves the shuffles.
template <class V, DType kType>
void transpose_keys(const std::uint8_t* const (&keys)[V::kWidth], std::int64_t floats, float* panel) {
  constexpr std::int64_t kBlock = V::kCols * V::kWidth;
  typename V::Reg block[V::kWidth];
  std::int64_t d = 0;
  if constexpr (kType == DType::bf16 && V::kWidth >= 8) {
    for (; d + 2 * V::kWidth <= floats; d += 2 * V::kWidth) {
      for (int i = 0; i < V::kWidth; ++i) block[i] = V::load(reinterpret_cast<const float*>(keys[i] + 2 * d));
      V::transpose(block);
      for (int i = 0; i < V::kWidth; ++i) {
        V::store(panel + (d + 2 * i) * kBlock, V::even_bf16(block[i]));
        V::store(panel + (d + 2 * i + 1) * kBlock, V::odd_bf16(block[i]));
      }
    }
  }
  for (; d < floats; d += V::kWidth) {
    for (int i = 0; i < V::kWidth; ++i) block[i] = load_elements<V, kType>(keys[i], d);
    V::transpose(block);
    for (int i = 0; i < V::kWidth; ++i) V::store(panel + (d + i) * kBlock, block[i]);
  }
}

/// The tile's keys into the K panels, from where they lie. Lanes beside them hold some key of the tile: their scores are not
/// used.
template <class V, DType kType>
void pack_keys_in_place(const ItemView& v, const TileRows& rows, const RowSource& source, PrefetchWalk& ahead) {
  constexpr std::int64_t kBlock = V::kCols * V::kWidth;
  const auto* base = static_cast<const std::uint8_t*>(source.data);
  const std::int64_t size = itemsize(source.dtype), floats = key_floats<V>(v.args);
  for (std::int64_t j = rows.begin / V::kWidth * V::kWidth; j < rows.end; j += V::kWidth) {
    const std::uint8_t* keys[V::kWidth];
    for (std::int64_t i = 0; i < V::kWidth; ++i) {
      const std::int64_t key = j + i < rows.begin ? rows.begin : j + i < rows.end ? j + i : rows.end - 1;
      keys[i] = base + rows.k[key] * size;
    }
    transpose_keys<V, kType>(keys, floats, v.k_panel + j / kBlock * kBlock * v.stride + j % kBlock);
    ahead.advance(V::kWidth);
  }
}

/// One value row as f32, zero-padded to the stride. `own` is the scale of its token.
template <class V>
void load_value_row(const ItemView& v, float* to, const RowSource& source, std::int64_t offset, bool fresh, float own) {
  const float scale = own * scale_of_head(v.args.v_scale, v.args.v_scale_stride, v.item.kv_head);
  load_scaled_row<V>(to, source, offset, V::Faults::is_scaled(fresh) ? scale : 1.0f);
}

/// A value row, whose vectors load(d) yields, into its place in the panels; false (and zeros there) if an element is not finite.
template <class V, class Load>
bool pack_value_row(const ItemView& v, std::int64_t j, Load&& load) {
  const std::int64_t vectors = v.v_stride / V::kWidth;
  auto check = V::set1(0.0f);
  for (std::int64_t c = 0; c < vectors;) {
    const int wide = block_vectors<V>(vectors - c);
    float* to = v.v_panel + c * V::kWidth * v.tile_kv + j * wide * V::kWidth;
    for (int i = 0; i < wide; ++i, ++c) {
      const auto x = load(c * V::kWidth);
      check = V::fma(x, V::set1(0.0f), check);
      V::store(to + i * V::kWidth, x);
    }
  }
  if (V::Faults::is_finite(!V::any_nan(check))) return true;
  for (std::int64_t c = 0; c < vectors;) {
    const int wide = block_vectors<V>(vectors - c);
    float* to = v.v_panel + c * V::kWidth * v.tile_kv + j * wide * V::kWidth;
    for (int i = 0; i < wide; ++i, ++c) V::store(to + i * V::kWidth, V::set1(0.0f));
  }
  return false;
}

/// The tile's values into the V panels, from where they lie.
template <class V, DType kType>
void pack_values_in_place(const ItemView& v, const TileRows& rows, const RowSource& source, SetAside& aside) {
  aside.count = 0;
  const auto* base = static_cast<const std::uint8_t*>(source.data);
  const std::int64_t size = itemsize(source.dtype);
  for (std::int64_t j = rows.begin; j < rows.end; ++j) {
    const std::uint8_t* row = base + rows.v[j] * size;
    if (!pack_value_row<V>(v, j, [&](std::int64_t d) { return load_elements<V, kType>(row, d); })) aside.keys[aside.count++] = j;
  }
}

/// Value rows that lie one after the other in one source, up to kWidth of them: they are loaded together.
template <class V>
struct ValueBlock {
  std::int64_t offsets[V::kWidth];
  std::int64_t first = 0, count = 0;  ///< keys [first, first + count), relative to the tile
  const RowSource* source = nullptr;
  bool fresh = false;

  bool takes(std::int64_t j, const RowSource& from) const {
    return count == 0 || (count < V::kWidth && source == &from && j % V::kWidth != 0);
  }
};

/// The rows of a block as f32 in the staging rows, times their scale, and from there into the V panels.
template <class V>
void pack_value_block(const ItemView& v, ValueBlock<V>& block, const TileScales& scales, SetAside& aside) {
  if (block.count == 0) return;
  load_rows<V>(v.staging, *block.source, block.offsets, block.count);
  const bool scaled = V::Faults::is_scaled(block.fresh);
  const float common = scaled ? scale_of_head(v.args.v_scale, v.args.v_scale_stride, v.item.kv_head) : 1.0f;
  for (std::int64_t i = 0; i < block.count; ++i) {
    const float* row = v.staging + i * v.v_stride;
    const float scale = scaled ? common * scales.of_value(block.first + i) : 1.0f;
    const auto load = [&](std::int64_t d) {
      const auto x = V::load(row + d);
      return scale == 1.0f ? x : V::mul(x, V::set1(scale));
    };
    if (!pack_value_row<V>(v, block.first + i, load)) aside.keys[aside.count++] = block.first + i;
  }
  block.count = 0;
}

/// Values of keys [begin, end) of the tile into the V panels.
template <class V>
void pack_values(const ItemView& v, std::int64_t tile_begin, std::int64_t begin, std::int64_t end, const TileScales& scales,
                 SetAside& aside) {
  aside.count = 0;
  ValueBlock<V> block;
  for_each_row(v.args, kv_rows(v), v.args.cache_v, v.args.value, begin, end,
               [&](std::int64_t position, const RowSource& source, std::int64_t offset, bool fresh) {
                 const std::int64_t j = position - tile_begin;
                 if (!block.takes(j, source)) pack_value_block<V>(v, block, scales, aside);
                 if (block.count == 0) block.first = j, block.source = &source, block.fresh = fresh;
                 block.offsets[block.count++] = offset;
               });
  pack_value_block<V>(v, block, scales, aside);
}

}  // namespace
}  // namespace quire::cpu
