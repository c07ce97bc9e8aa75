// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Many score rows over a tile of packed keys: S = Q K^T, softmax, acc = acc * correction + P V.
//
// A block of up to kRows rows goes through all three steps while its scores are in L1; K and V panels stream from L2 once for
// each block. Every row of a block multiplies the same range of keys; keys that a row does not see have weight 0 and finite
// values (panels.h), which leaves its accumulator as it was. Each score is one multiply-add chain over head_dim, each accumulator
// one chain over keys: nothing depends on how rows are cut into blocks.
#pragma once

#include <cstdint>

#include "backend/cpu/direct_rows.h"
#include "backend/cpu/direct_values.h"
#include "backend/cpu/elements.h"
#include "backend/cpu/item_view.h"
#include "backend/cpu/panels.h"
#include "backend/cpu/register_block.h"
#include "backend/cpu/softmax_row.h"
#include "backend/cpu/tile_scales.h"

namespace quire::cpu {
namespace {

// ---- S = Q K^T ---------------------------------------------------------------------------------------------------------

/// kRows score rows x kCols vectors of one block of keys.
template <class V, int kRows, int kCols>
void score_block(const float* query, std::int64_t stride, const float* panel, std::int64_t head_dim, float* scores,
                 std::int64_t tile_kv) {
  auto sums = RegisterBlock<V, kRows, kCols>::zero();
  for (std::int64_t d = 0; d * V::kPairs < head_dim; ++d)
    sums.add_dots(query + d, stride, RegisterRow<V, kCols>::of(panel + d * V::kCols * V::kWidth));
  sums.store(scores, tile_kv);
}

using ScoreBlock = void (*)(const float*, std::int64_t, const float*, std::int64_t, float*, std::int64_t);

template <class V, int kRows = V::kRows>
ScoreBlock score_block_of(std::int64_t rows) {
  if constexpr (kRows > 1)
    if (rows < kRows) return score_block_of<V, kRows - 1>(rows);
  return score_block<V, kRows, V::kCols>;
}

/// V::kRows rows x `vectors` of a block: at the ends of a window.
template <class V, int kCols = V::kCols>
ScoreBlock score_part_of(std::int64_t vectors) {
  if constexpr (kCols > 1)
    if (vectors < kCols) return score_part_of<V, kCols - 1>(vectors);
  return score_block<V, V::kRows, kCols>;
}

/// Rows [m, m + rows) against the key blocks that hold `keys`: V::kRows rows against the vectors that hold them, fewer rows
/// against whole blocks.
template <class V>
void score_rows(const ItemView& v, std::int64_t m, std::int64_t rows, TileKeys keys) {
  constexpr std::int64_t kBlock = V::kCols * V::kWidth;
  const ScoreBlock whole = score_block_of<V>(rows);
  for (std::int64_t j = keys.begin / kBlock * kBlock; j < keys.end; j += kBlock) {
    std::int64_t first = 0, end = V::kCols;  // vectors of the block
    if (rows == V::kRows) {
      first = keys.begin > j ? (keys.begin - j) / V::kWidth : 0;
      end = keys.end - j < kBlock ? (keys.end - j + V::kWidth - 1) / V::kWidth : V::kCols;
    }
    const ScoreBlock block = end - first < V::kCols ? score_part_of<V>(end - first) : whole;
    const std::int64_t at = j + first * V::kWidth;
    block(v.query + m * v.stride, v.stride, v.k_panel + j * v.stride + first * V::kWidth, v.args.head_dim, v.scores + at,
          v.tile_kv);
  }
}

// ---- acc = acc * correction + P V -----------------------------------------------------------------------------------------

/// kRows rows x kCols vectors of dims.
template <class V, int kRows, int kCols>
void accumulate_block(float* acc, std::int64_t stride, const float* probs, std::int64_t tile_kv, const float* panel,
                      TileKeys keys, const float* corrections) {
  auto sums = RegisterBlock<V, kRows, kCols>::scaled(acc, stride, corrections);
  for (std::int64_t j = keys.begin; j < keys.end; ++j)
    sums.add(probs + j, tile_kv, RegisterRow<V, kCols>::of(panel + j * kCols * V::kWidth));
  sums.store(acc, stride);
}

using AccumulateBlock = void (*)(float*, std::int64_t, const float*, std::int64_t, const float*, TileKeys, const float*);

template <class V, int kCols, int kRows = V::kRows>
AccumulateBlock accumulate_block_of(std::int64_t rows) {
  if constexpr (kRows > 1)
    if (rows < kRows) return accumulate_block_of<V, kCols, kRows - 1>(rows);
  return accumulate_block<V, kRows, kCols>;
}

/// Rows [m, m + rows) gain the values of `keys`, which every one of them has a weight for.
template <class V>
void accumulate_rows(const ItemView& v, std::int64_t m, std::int64_t rows, TileKeys keys, const float* corrections) {
  const std::int64_t vectors = v.v_stride / V::kWidth;
  for (std::int64_t c = 0; c < vectors;) {
    const int wide = block_vectors<V>(vectors - c);
    const AccumulateBlock block = wide == V::kCols ? accumulate_block_of<V, V::kCols>(rows)
                                  : wide == 2      ? accumulate_block_of<V, 2>(rows)
                                                   : accumulate_block_of<V, 1>(rows);
    block(v.acc + m * v.v_stride + c * V::kWidth, v.v_stride, v.scores, v.tile_kv, v.v_panel + c * V::kWidth * v.tile_kv, keys,
          corrections);
    c += wide;
  }
}

/// Values that were set aside, for the row that sees them: 0 * NaN never meets a row that does not.
template <class V>
void add_set_aside(const ItemView& v, const SetAside& aside, const TileScales& scales, std::int64_t tile_begin, std::int64_t m,
                   TileKeys keys, const float* probs) {
  float* acc = v.acc + m * v.v_stride;
  for (std::int64_t i = 0; i < aside.count; ++i) {
    const std::int64_t j = aside.keys[i];
    if (j < keys.begin || j >= keys.end || v.tree_hides(m, tile_begin + j)) continue;
    for_each_row(v.args, kv_rows(v), v.args.cache_v, v.args.value, tile_begin + j, tile_begin + j + 1,
                 [&](std::int64_t, const RowSource& source, std::int64_t offset, bool fresh) {
                   load_value_row<V>(v, v.staging, source, offset, fresh, scales.of_value(j));
                 });
    for (std::int64_t d = 0; d < v.v_stride; d += V::kWidth)
      V::store(acc + d, V::fma(V::set1(probs[j]), V::load(v.staging + d), V::load(acc + d)));
  }
}

/// Scores of cached keys times k_scale, where the keys could not take it.
template <class V>
void scale_cached_keys(const ItemView& v, float* row, TileKeys keys, std::int64_t tile_begin) {
  const float scale = key_scale(v);
  std::int64_t cached_end = v.args.reqs[v.item.req].cached_len - tile_begin;
  if (V::Faults::is_scaled(/*fresh=*/true) || cached_end > keys.end) cached_end = keys.end;
  for (std::int64_t j = keys.begin; j < cached_end && scale != 1.0f; ++j) row[j] *= scale;
}

// ---- one tile --------------------------------------------------------------------------------------------------------------

/// Facts about a tile before it is absorbed: where its rows lie, and which rows need no conversion through scratch.
struct Tile {
  std::int64_t start, begin, end;  ///< keys [begin, end) of the tile that starts at `start`
  bool k_in_place = false, v_in_place = false;
  TileRows rows;  ///< offsets of rows, set if K or V is in place
  TileScales scales;
};

template <class V>
void find_tile(Tile& t, const ItemView& v, std::int64_t begin, std::int64_t end) {
  const AttendArgs& a = v.args;
  const std::int64_t cached = a.reqs[v.item.req].cached_len;
  t.start = begin / v.tile_kv * v.tile_kv;
  t.begin = begin;
  t.end = end;
  t.k_in_place = t.v_in_place = false;
  find_scales(t.scales, a, v.item.req, v.item.kv_head, begin, end);
  if (begin < cached && cached < end) return;
  const bool fresh = begin >= cached, scaled = V::Faults::is_scaled(fresh);
  const auto unscaled = [&](const float* scales, std::int64_t stride) {  // 8-bit rows, which may have other scales, never are
    return !scaled || scale_of_head(scales, stride, v.item.kv_head) == 1.0f;
  };
  const RowSource& k = fresh ? a.key : a.cache_k;
  // A kernel of bf16 pairs scales scores, not keys, and takes words of two as they are.
  const bool pairs = k.dtype == DType::bf16 && a.head_dim == 2 * key_floats<V>(a);
  t.k_in_place = readable_in_place(k) && (V::kPairs == 2 ? pairs : unscaled(a.k_scale, a.k_scale_stride));
  t.v_in_place = readable_in_place(fresh ? a.value : a.cache_v) && unscaled(a.v_scale, a.v_scale_stride);
  if (t.k_in_place || t.v_in_place) find_rows(t.rows, a, v.item.req, v.item.kv_head, begin, end);
}

/// The tile's keys into the K panels.
template <class V>
void load_keys_of_tile(const ItemView& v, const Tile& t, PrefetchWalk& ahead) {
  if (!t.k_in_place) return pack_keys<V>(v, t.start, t.begin, t.end, t.scales);
  const RowSource& source = t.rows.fresh ? v.args.key : v.args.cache_k;
  if constexpr (V::kPairs == 2)
    pack_keys_in_place<V, DType::f32>(v, t.rows, source, ahead);
  else
    for_element_type(source.dtype, [&](auto type) { pack_keys_in_place<V, decltype(type)::kValue>(v, t.rows, source, ahead); });
}

/// The tile's values into the V panels.
template <class V>
void load_values_of_tile(const ItemView& v, const Tile& t, SetAside& aside) {
  if (!t.v_in_place) return pack_values<V>(v, t.start, t.begin, t.end, t.scales, aside);
  aside.count = 0;
  const RowSource& source = t.rows.fresh ? v.args.value : v.args.cache_v;
  for_element_type(source.dtype, [&](auto type) { pack_values_in_place<V, decltype(type)::kValue>(v, t.rows, source, aside); });
}

/// A block of rows with its weights: v.scores holds them, zero for the keys of `all` that a row does not see.
template <class V>
struct WeightedRows {
  std::int64_t first, count;
  TileKeys all, keys[V::kRows];
  float corrections[V::kRows];
};

/// Rows [m, m + rows), each of which sees a key of the tile: scores, softmax.
template <class V>
WeightedRows<V> weigh_rows(const ItemView& v, const Tile& t, std::int64_t m, std::int64_t rows) {
  WeightedRows<V> w;
  w.first = m;
  w.count = rows;
  // Later rows see later keys: the first row has the smallest begin, the last row the largest end.
  w.all = {v.keys(m, t.start, t.begin, t.end).begin, v.keys(m + rows - 1, t.start, t.begin, t.end).end};
  score_rows<V>(v, m, rows, w.all);
  const HiddenKeys hidden{v, m, t.start, t.begin >= v.mask.tree_begin};
  const bool together = !hidden.of_tree && scales_only(v.args, v.args.score);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = v.scores + r * v.tile_kv;
    w.keys[r] = v.keys(m + r, t.start, t.begin, t.end);
    if (V::kPairs == 2) scale_cached_keys<V>(v, row, w.keys[r], t.start);
    if (together) continue;
    w.corrections[r] = softmax_row<V>(row, w.keys[r], v.args.score, v.slope(m + r), t.start - V::Faults::alibi_origin(v, m + r),
                                      v.states[m + r], {v, m + r, t.start, hidden.of_tree});
  }
  if (together) softmax_rows<V>(v.scores, v.tile_kv, w.keys, rows, v.args.score, v.states + m, w.corrections, hidden);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = v.scores + r * v.tile_kv;
    for (std::int64_t j = w.all.begin; j < w.keys[r].begin; ++j) row[j] = 0.0f;
    for (std::int64_t j = w.keys[r].end; j < w.all.end; ++j) row[j] = 0.0f;
  }
  return w;
}

/// acc = acc * correction + P V from the V panels.
template <class V>
void accumulate_weighted(const ItemView& v, const Tile& t, const WeightedRows<V>& w, const SetAside& aside) {
  accumulate_rows<V>(v, w.first, w.count, w.all, w.corrections);
  for (std::int64_t r = 0; r < w.count && aside.count > 0; ++r)
    add_set_aside<V>(v, aside, t.scales, t.start, w.first + r, w.keys[r], v.scores + r * v.tile_kv);
}

/// Accumulates all rows of an item that has few, without panels. Returns false, and does nothing, if an accumulator is not finite
/// afterwards: values that are not finite are added last (add_set_aside), and nobody has looked for them here.
template <class V>
bool accumulate_in_place(const ItemView& v, const Tile& t, const WeightedRows<V>& w, PrefetchWalk& ahead) {
  const std::int64_t floats = v.num_rows * v.v_stride;
  float* before = v.v_panel;  // free: V is not packed
  for (std::int64_t i = 0; i < floats; i += V::kWidth) V::store(before + i, V::load(v.acc + i));
  float corrections[V::kRows];
  for (std::int64_t r = 0; r < w.count; ++r) corrections[r] = w.corrections[r];
  direct_values<V>(v, t.rows, t.rows.fresh ? v.args.value : v.args.cache_v, w.keys, corrections, ahead);
  auto check = V::set1(0.0f);
  for (std::int64_t i = 0; i < floats; i += V::kWidth) check = V::fma(V::load(v.acc + i), V::set1(0.0f), check);
  if (V::Faults::is_finite(!V::any_nan(check))) return true;
  for (std::int64_t i = 0; i < floats; i += V::kWidth) V::store(v.acc + i, V::load(before + i));
  return false;
}

/// Absorbs a tile into acc and states. `next` is the tile after it, or null; items of few rows ask for its lines meanwhile.
template <class V>
void absorb_tile(const ItemView& v, const Tile& t, const Tile* next) {
  const bool few = v.num_rows <= V::kRows;
  const auto walk = [&](bool cached, const RowSource& cache, const RowSource& fresh, const std::int64_t* offsets) {
    const TileRows* rows = few && cached ? &next->rows : nullptr;
    return PrefetchWalk(rows, rows != nullptr && rows->fresh ? fresh : cache, offsets, v.args, t.end - t.begin);
  };
  const AttendArgs& a = v.args;
  PrefetchWalk k_ahead = walk(next != nullptr && next->k_in_place, a.cache_k, a.key, next != nullptr ? next->rows.k : nullptr);
  load_keys_of_tile<V>(v, t, k_ahead);
  // The rows that see a key of the tile lie side by side: causality hides it from earlier rows, the window from later ones.
  std::int64_t first = 0, last = v.num_rows;
  while (first < last && v.keys(first, t.start, t.begin, t.end).empty()) ++first;
  while (last > first && v.keys(last - 1, t.start, t.begin, t.end).empty()) --last;
  SetAside aside;
  if (few && t.v_in_place && last - first == v.num_rows) {
    const WeightedRows<V> w = weigh_rows<V>(v, t, 0, v.num_rows);
    PrefetchWalk v_ahead =
        walk(next != nullptr && next->v_in_place, a.cache_v, a.value, next != nullptr ? next->rows.v : nullptr);
    if (accumulate_in_place<V>(v, t, w, v_ahead)) return;
    load_values_of_tile<V>(v, t, aside);
    return accumulate_weighted<V>(v, t, w, aside);
  }
  load_values_of_tile<V>(v, t, aside);
  for (std::int64_t m = first; m < last; m += V::kRows)
    accumulate_weighted<V>(v, t, weigh_rows<V>(v, t, m, last - m < V::kRows ? last - m : V::kRows), aside);
}

}  // namespace
}  // namespace quire::cpu
