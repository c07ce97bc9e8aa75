// Stage: attend. Many score rows over a tile of packed keys: S = Q K^T, softmax, acc = acc * correction + P V.
//
// A block of up to kRows rows goes through all three steps while its scores are in L1; K and V panels stream from L2 once for
// each block. Every row of a block multiplies the same range of keys; keys that a row does not see have weight 0 and finite
// values (panels.h), which leaves its accumulator as it was. Each score is one multiply-add chain over head_dim, each accumulator
// one chain over keys: nothing depends on how rows are cut into blocks.
#pragma once

#include <cstdint>

#include "backend/cpu/item_view.h"
#include "backend/cpu/panels.h"
#include "backend/cpu/planted.h"
#include "backend/cpu/softmax_row.h"

namespace quire::cpu {
namespace {

// ---- S = Q K^T ---------------------------------------------------------------------------------------------------------

/// kRows score rows x one block of keys.
template <class V, int kRows>
void score_block(const float* query, std::int64_t stride, const float* panel, std::int64_t head_dim, float* scores,
                 std::int64_t tile_kv) {
  typename V::Reg sum[kRows][V::kCols];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < V::kCols; ++c) sum[r][c] = V::set1(0.0f);
  for (std::int64_t d = 0; d * V::kPairs < head_dim; ++d) {
    if (QUIRE_PLANTED(query_tail_dims_dropped) && d * V::kPairs >= head_dim / 16 * 16) break;
    typename V::Reg k[V::kCols];
    for (int c = 0; c < V::kCols; ++c) k[c] = V::load(panel + (d * V::kCols + c) * V::kWidth);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg q = V::set1(query[r * stride + d]);
      for (int c = 0; c < V::kCols; ++c) sum[r][c] = V::dot(q, k[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < V::kCols; ++c) V::store(scores + r * tile_kv + c * V::kWidth, sum[r][c]);
}

using ScoreBlock = void (*)(const float*, std::int64_t, const float*, std::int64_t, float*, std::int64_t);

template <class V, int kRows = V::kRows>
ScoreBlock score_block_of(std::int64_t rows) {
  if constexpr (kRows > 1)
    if (rows < kRows) return score_block_of<V, kRows - 1>(rows);
  return score_block<V, kRows>;
}

/// Rows [m, m + rows) against the key blocks that hold `keys`.
template <class V>
void score_rows(const ItemView& v, std::int64_t m, std::int64_t rows, TileKeys keys) {
  constexpr std::int64_t kBlock = V::kCols * V::kWidth;
  const ScoreBlock block = score_block_of<V>(rows);
  for (std::int64_t j = keys.begin / kBlock * kBlock; j < keys.end; j += kBlock)
    block(v.query + m * v.stride, v.stride, v.k_panel + j * v.stride, v.args.head_dim, v.scores + j, v.tile_kv);
}

// ---- acc = acc * correction + P V -----------------------------------------------------------------------------------------

/// kRows rows x kCols vectors of dims.
template <class V, int kRows, int kCols>
void accumulate_block(float* acc, std::int64_t stride, const float* probs, std::int64_t tile_kv, const float* panel,
                      TileKeys keys, const float* corrections) {
  typename V::Reg sum[kRows][kCols];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) sum[r][c] = V::mul(V::load(acc + r * stride + c * V::kWidth), V::set1(corrections[r]));
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    typename V::Reg x[kCols];
    for (int c = 0; c < kCols; ++c) x[c] = V::load(panel + (j * kCols + c) * V::kWidth);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg p = V::set1(probs[r * tile_kv + j]);
      for (int c = 0; c < kCols; ++c) sum[r][c] = V::fma(p, x[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) V::store(acc + r * stride + c * V::kWidth, sum[r][c]);
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
  if (QUIRE_PLANTED(masked_keys_multiplied)) keys.end = (keys.end + V::kWidth - 1) / V::kWidth * V::kWidth;
  const std::int64_t vectors = v.stride / V::kWidth;
  for (std::int64_t c = 0; c < vectors;) {
    const int wide = block_vectors<V>(vectors - c);
    const AccumulateBlock block = wide == V::kCols ? accumulate_block_of<V, V::kCols>(rows)
                                  : wide == 2      ? accumulate_block_of<V, 2>(rows)
                                                   : accumulate_block_of<V, 1>(rows);
    block(v.acc + m * v.stride + c * V::kWidth, v.stride, v.scores, v.tile_kv, v.v_panel + c * V::kWidth * v.tile_kv, keys,
          corrections);
    c += wide;
  }
}

/// Values that were set aside, for the row that sees them: 0 * NaN never meets a row that does not.
template <class V>
void add_set_aside(const ItemView& v, const SetAside& aside, std::int64_t tile_begin, std::int64_t m, TileKeys keys,
                   const float* probs) {
  float* acc = v.acc + m * v.stride;
  for (std::int64_t i = 0; i < aside.count; ++i) {
    const std::int64_t j = aside.keys[i];
    if (j < keys.begin || j >= keys.end) continue;
    for_each_row(v.args, kv_rows(v), v.args.cache_v, v.args.value, tile_begin + j, tile_begin + j + 1,
                 [&](std::int64_t, const RowSource& source, std::int64_t offset, bool fresh) {
                   load_value_row<V>(v, v.staging, source, offset, fresh);
                 });
    for (std::int64_t d = 0; d < v.stride; d += V::kWidth)
      V::store(acc + d, V::fma(V::set1(probs[j]), V::load(v.staging + d), V::load(acc + d)));
  }
}

/// Scores of cached keys times k_scale, where the keys could not take it.
inline void scale_cached_keys(const ItemView& v, float* row, TileKeys keys, std::int64_t tile_begin) {
  const float scale = scale_of_head(v.args.k_scale, v.args.k_scale_stride, v.item.kv_head);
  std::int64_t cached_end = v.args.reqs[v.item.req].cached_len - tile_begin;
  if (QUIRE_PLANTED(scales_on_new_rows) || cached_end > keys.end) cached_end = keys.end;
  for (std::int64_t j = keys.begin; j < cached_end && scale != 1.0f; ++j) row[j] *= scale;
}

// ---- one tile --------------------------------------------------------------------------------------------------------------

/// Rows [m, m + rows), each of which sees a key of [begin, end), through the three steps.
template <class V>
void absorb_block(const ItemView& v, std::int64_t m, std::int64_t rows, std::int64_t tile_begin, std::int64_t begin,
                  std::int64_t end, const SetAside& aside) {
  // Later rows see later keys: the first row has the smallest begin, the last row the largest end.
  const TileKeys all{v.keys(m, tile_begin, begin, end).begin, v.keys(m + rows - 1, tile_begin, begin, end).end};
  score_rows<V>(v, m, rows, all);
  TileKeys keys[V::kRows];
  float corrections[V::kRows];
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = v.scores + r * v.tile_kv;
    keys[r] = v.keys(m + r, tile_begin, begin, end);
    if (V::kPairs == 2) scale_cached_keys(v, row, keys[r], tile_begin);
    corrections[r] =
        softmax_row<V>(row, keys[r], v.args.score, v.slope(m + r), tile_begin - v.alibi_origin(m + r), v.states[m + r]);
    for (std::int64_t j = all.begin; j < keys[r].begin; ++j) row[j] = 0.0f;
    for (std::int64_t j = keys[r].end; j < all.end; ++j) row[j] = 0.0f;
  }
  accumulate_rows<V>(v, m, rows, all, corrections);
  for (std::int64_t r = 0; r < rows && aside.count > 0; ++r)
    add_set_aside<V>(v, aside, tile_begin, m + r, keys[r], v.scores + r * v.tile_kv);
}

/// Absorbs keys [begin, end), which lie in one tile, into acc and states.
template <class V>
void absorb_tile(const ItemView& v, std::int64_t begin, std::int64_t end) {
  const std::int64_t tile_begin = begin / v.tile_kv * v.tile_kv;
  SetAside aside;
  pack_keys<V>(v, tile_begin, begin, end);
  pack_values<V>(v, tile_begin, begin, end, aside);
  // The rows that see a key of the tile lie side by side: causality hides it from earlier rows, the window from later ones.
  std::int64_t first = 0, last = v.num_rows;
  while (first < last && v.keys(first, tile_begin, begin, end).empty()) ++first;
  while (last > first && v.keys(last - 1, tile_begin, begin, end).empty()) --last;
  for (std::int64_t m = first; m < last; m += V::kRows)
    absorb_block<V>(v, m, last - m < V::kRows ? last - m : V::kRows, tile_begin, begin, end, aside);
}

}  // namespace
}  // namespace quire::cpu
