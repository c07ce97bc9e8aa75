// Stage: attend. Few score rows, many keys: K and V go from the cache through L1 into the products, each read once, whatever the
// group, and what comes next is prefetched.
//
// Panels pay when many rows share them; a decode row would write and read every byte of the cache once more. Here a few keys at a
// time are converted into L1 (once for all rows) and lanes are dims: a score is kWidth partial sums over its dims, added up by
// one tree. Softmax, masks and merging are those of the tile path.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/attend_tile.h"
#include "backend/cpu/direct_rows.h"
#include "backend/cpu/item_view.h"
#include "backend/cpu/planted.h"
#include "backend/cpu/softmax_row.h"
#include "backend/cpu/tile_path.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kMaxDirectRows = 8;  // plan.direct_rows never exceeds it
constexpr std::int64_t kDirectKeys = 4;     // keys scored together
constexpr std::int64_t kDirectValues = 32;  // value rows converted together: 16 KiB of L1 at head_dim 128

/// Scores of kRows rows with four keys. Every sum is one chain over vectors of dims and one tree over lanes, wherever it stands.
template <class V, int kRows>
void direct_score_block(const ItemView& v, std::int64_t m, std::int64_t j) {
  typename V::Reg sum[kRows][kDirectKeys];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kDirectKeys; ++c) sum[r][c] = V::set1(0.0f);
  const float* query = v.query + m * v.stride;
  const std::int64_t floats = key_floats<V>(v.args);
  for (std::int64_t d = 0; d < floats; d += V::kWidth) {
    if (QUIRE_PLANTED(query_tail_dims_dropped) && (d + V::kWidth) * V::kPairs >= v.args.head_dim) break;
    typename V::Reg k[kDirectKeys];
    for (int c = 0; c < kDirectKeys; ++c) k[c] = V::load(v.staging + c * v.stride + d);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg q = V::load(query + r * v.stride + d);
      for (int c = 0; c < kDirectKeys; ++c) sum[r][c] = V::dot(q, k[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) V::store_sums(v.scores + (m + r) * v.tile_kv + j, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}

using DirectScoreBlock = void (*)(const ItemView&, std::int64_t, std::int64_t);

template <class V, int kRows = V::kDirectRows>
DirectScoreBlock direct_score_block_of(std::int64_t rows) {
  if constexpr (kRows > 1)
    if (rows < kRows) return direct_score_block_of<V, kRows - 1>(rows);
  return direct_score_block<V, kRows>;
}

/// All rows against all keys of the tile, in fours counted from the tile's beginning. Scores beside them are meaningless.
template <class V>
void direct_scores(const ItemView& v, const TileRows& rows, const RowSource& source, PrefetchWalk& ahead) {
  for (std::int64_t j = rows.begin / kDirectKeys * kDirectKeys; j < rows.end; j += kDirectKeys) {
    std::int64_t offsets[kDirectKeys];
    for (std::int64_t c = 0; c < kDirectKeys; ++c)
      offsets[c] = rows.k[j + c < rows.begin ? rows.begin : j + c < rows.end ? j + c : rows.end - 1];
    load_keys<V>(v.staging, /*temp=*/v.v_panel, source, offsets, kDirectKeys, v.args);
    ahead.advance(kDirectKeys);
    for (std::int64_t m = 0; m < v.num_rows; m += V::kDirectRows) direct_score_block_of<V>(v.num_rows - m)(v, m, j);
  }
}

/// Rows [m, m + count) gain the values of keys [begin, end) of those converted, the first of which is key `first` of the tile.
/// A row's correction is applied with its first keys.
template <class V>
void direct_accumulate(const ItemView& v, std::int64_t m, std::int64_t count, std::int64_t first, TileKeys keys,
                       float* corrections) {
  if (keys.empty()) return;
  const ValueRows values{v.v_panel, V::kWidth, v.stride};
  accumulate_rows<V>(v, m, count, values, v.scores + m * v.tile_kv + first, {keys.begin - first, keys.end - first},
                     corrections + m);
  for (std::int64_t r = 0; r < count; ++r) corrections[m + r] = 1.0f;
}

/// Rows [m, m + count) with their own keys among [first, last): those that all of them see together, the others row by row. A key
/// that a row does not see is never multiplied: 0 * NaN would be NaN.
template <class V>
void direct_accumulate_block(const ItemView& v, std::int64_t m, std::int64_t count, std::int64_t first, std::int64_t last,
                             const TileKeys* keys, float* corrections) {
  const auto clip = [&](std::int64_t row) {
    return TileKeys{keys[row].begin > first ? keys[row].begin : first, keys[row].end < last ? keys[row].end : last};
  };
  TileKeys common = clip(m);
  for (std::int64_t r = m; r < m + count; ++r) {
    if (clip(r).begin > common.begin) common.begin = clip(r).begin;
    if (clip(r).end < common.end) common.end = clip(r).end;
  }
  if (common.empty()) {
    for (std::int64_t r = m; r < m + count; ++r) direct_accumulate<V>(v, r, 1, first, clip(r), corrections);
    return;
  }
  for (std::int64_t r = m; r < m + count; ++r) direct_accumulate<V>(v, r, 1, first, {clip(r).begin, common.begin}, corrections);
  direct_accumulate<V>(v, m, count, first, common, corrections);
  for (std::int64_t r = m; r < m + count; ++r) direct_accumulate<V>(v, r, 1, first, {common.end, clip(r).end}, corrections);
}

/// acc = acc * correction + P V for all rows, a few converted value rows at a time.
template <class V>
void direct_values(const ItemView& v, const TileRows& rows, const RowSource& source, const TileKeys* keys, float* corrections,
                   PrefetchWalk& ahead) {
  const std::int64_t blocks = (v.num_rows + V::kRows - 1) / V::kRows, block = (v.num_rows + blocks - 1) / blocks;
  for (std::int64_t first = rows.begin; first < rows.end; first += kDirectValues) {
    const std::int64_t last = first + kDirectValues < rows.end ? first + kDirectValues : rows.end;
    for (std::int64_t j = first; j < last; j += kDirectKeys) {
      const std::int64_t count = j + kDirectKeys < last ? kDirectKeys : last - j;
      load_rows<V>(v.v_panel + (j - first) * v.stride, source, rows.v + j, count, v.args);
      ahead.advance(count);
    }
    for (std::int64_t m = 0; m < v.num_rows; m += block)
      direct_accumulate_block<V>(v, m, v.num_rows - m < block ? v.num_rows - m : block, first, last, keys, corrections);
  }
}

/// Absorbs the keys of `rows`, which lie in one tile; `next` is the tile after it, or null.
template <class V>
void absorb_tile_directly(const ItemView& v, const TileRows& rows, const TileRows* next, std::int64_t tile_begin) {
  const AttendArgs& a = v.args;
  const bool scaled = !rows.fresh || QUIRE_PLANTED(scales_on_new_rows);
  const float k_scale = scaled ? scale_of_head(a.k_scale, a.k_scale_stride, v.item.kv_head) : 1.0f;
  const float v_scale = scaled ? scale_of_head(a.v_scale, a.v_scale_stride, v.item.kv_head) : 1.0f;
  semantics::ScoreParams params = a.score;
  params.scale *= k_scale;
  const auto walk = [&](const RowSource& cached, const RowSource& fresh, const std::int64_t* offsets) {
    return PrefetchWalk(next, next != nullptr && next->fresh ? fresh : cached, offsets, a, rows.end - rows.begin);
  };
  PrefetchWalk k_ahead = walk(a.cache_k, a.key, next != nullptr ? next->k : nullptr);
  direct_scores<V>(v, rows, rows.fresh ? a.key : a.cache_k, k_ahead);
  TileKeys keys[kMaxDirectRows];
  float corrections[kMaxDirectRows];
  for (std::int64_t m = 0; m < v.num_rows; ++m) {
    float* row = v.scores + m * v.tile_kv;
    keys[m] = v.keys(m, tile_begin, tile_begin + rows.begin, tile_begin + rows.end);
    if (keys[m].empty()) continue;
    corrections[m] = softmax_row<V>(row, keys[m], params, v.slope(m), tile_begin - v.alibi_origin(m), v.states[m]);
    for (std::int64_t j = keys[m].begin / V::kWidth * V::kWidth; j < keys[m].end && v_scale != 1.0f; j += V::kWidth)
      V::store(row + j, V::mul(V::load(row + j), V::set1(v_scale)));
  }
  PrefetchWalk v_ahead = walk(a.cache_v, a.value, next != nullptr ? next->v : nullptr);
  if (QUIRE_PLANTED(stale_value_tile) && tile_begin != 0) return;
  direct_values<V>(v, rows, rows.fresh ? a.value : a.cache_v, keys, corrections, v_ahead);
}

/// Keys [begin, end) of one segment, tile by tile; the first tile beyond is prefetched, too.
template <class V>
void absorb_directly(const ItemView& v, std::int64_t begin, std::int64_t end) {
  const std::int64_t cached = v.args.reqs[v.item.req].cached_len;
  const auto stop_of = [&](std::int64_t at, std::int64_t limit) {
    const std::int64_t tile_end = (at / v.tile_kv + 1) * v.tile_kv;
    const std::int64_t stop = tile_end < limit ? tile_end : limit;
    return at < cached && cached < stop ? cached : stop;
  };
  TileRows rows[2];
  int current = 0;
  std::int64_t stop = stop_of(begin, end);
  find_rows(rows[0], v.args, v.item.req, v.item.kv_head, begin, stop);
  for (std::int64_t at = begin; at < end; current ^= 1) {
    const std::int64_t limit = stop < end ? end : v.item.key_end;
    const std::int64_t after = stop < limit ? stop_of(stop, limit) : stop;
    TileRows* next = after > stop ? &rows[current ^ 1] : nullptr;
    if (next != nullptr) find_rows(*next, v.args, v.item.req, v.item.kv_head, stop, after);
    absorb_tile_directly<V>(v, rows[current], next, at / v.tile_kv * v.tile_kv);
    at = stop;
    stop = after;
  }
}

}  // namespace
}  // namespace quire::cpu
