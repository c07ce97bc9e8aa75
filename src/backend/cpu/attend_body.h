// The CPU attention kernel, once: one work item = one KV head of one request, a tile of query rows, a range of keys.
//
// Algorithm (FlashAttention-2 order, Dao 2023, arXiv:2307.08691): for each segment of split_keys keys, for each tile of tile_kv
// keys: convert K and V to f32, S = Q K^T, score, mask, running softmax, acc = acc * correction + P V; then fold the segment.
// Every row's arithmetic depends on its own query, its own keys and their absolute positions only; rows and threads share
// tiles but never partial sums. That makes results batch-invariant and independent of how work is cut.
// `V` is the instruction set: simd_scalar.h, simd_avx2.h, simd_avx512.h. No std templates in here: an out-of-line copy of one
// compiled for AVX-512 could serve the whole program.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/attend_direct.h"
#include "backend/cpu/attend_tile.h"
#include "backend/cpu/finish_row.h"
#include "backend/cpu/fold_rows.h"
#include "backend/cpu/item_view.h"
#include "backend/cpu/planted.h"
#include "backend/cpu/softmax_row.h"

namespace quire::cpu {
namespace {

// ---- S = Q K^T ---------------------------------------------------------------------------------------------------------

/// kRows score rows x kCols vectors of keys; one fused multiply-add chain over d for each score, whatever the block shape.
template <class V, int kRows, int kCols>
void score_block(const float* query, std::int64_t stride, const float* columns, std::int64_t tile_kv, std::int64_t head_dim,
                 float* scores) {
  typename V::Reg sum[kRows][kCols];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) sum[r][c] = V::set1(0.0f);
  for (std::int64_t d = 0; d < head_dim; ++d) {
    if (QUIRE_PLANTED(query_tail_dims_dropped) && d >= head_dim / 16 * 16) break;
    typename V::Reg k[kCols];
    for (int c = 0; c < kCols; ++c) k[c] = V::load(columns + d * tile_kv + c * V::kWidth);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg q = V::set1(query[r * stride + d]);
      for (int c = 0; c < kCols; ++c) sum[r][c] = V::fma(q, k[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) V::store(scores + r * tile_kv + c * V::kWidth, sum[r][c]);
}

using ScoreBlock = void (*)(const float*, std::int64_t, const float*, std::int64_t, std::int64_t, float*);

/// All rows against the keys [keys.begin, keys.end) of the tile, rounded outwards to whole vectors.
template <class V>
void score_tile(const ItemView& v, TileKeys keys) {
  const std::int64_t first = keys.begin / V::kWidth * V::kWidth;
  for (std::int64_t j = first; j < keys.end;) {
    const bool wide = j + V::kCols * V::kWidth <= v.tile_kv && j + (V::kCols - 1) * V::kWidth < keys.end;
    const ScoreBlock many = wide ? score_block<V, V::kRows, V::kCols> : score_block<V, V::kRows, 1>;
    const ScoreBlock one = wide ? score_block<V, 1, V::kCols> : score_block<V, 1, 1>;
    std::int64_t m = 0;
    for (; m + V::kRows <= v.num_rows; m += V::kRows)
      many(v.query + m * v.stride, v.stride, v.k_columns + j, v.tile_kv, v.args.head_dim, v.scores + m * v.tile_kv + j);
    for (; m < v.num_rows; ++m)
      one(v.query + m * v.stride, v.stride, v.k_columns + j, v.tile_kv, v.args.head_dim, v.scores + m * v.tile_kv + j);
    j += wide ? V::kCols * V::kWidth : V::kWidth;
  }
}

// ---- acc = acc * correction + P V -----------------------------------------------------------------------------------------

template <class V, int kRows, int kCols>
void accumulate_block(float* acc, std::int64_t stride, const float* probs, std::int64_t tile_kv, const float* values,
                      TileKeys keys, const float* corrections) {
  typename V::Reg sum[kRows][kCols];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) sum[r][c] = V::mul(V::load(acc + r * stride + c * V::kWidth), V::set1(corrections[r]));
  if (QUIRE_PLANTED(masked_keys_multiplied)) keys.end = (keys.end + V::kWidth - 1) / V::kWidth * V::kWidth;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    typename V::Reg x[kCols];
    for (int c = 0; c < kCols; ++c) x[c] = V::load(values + j * stride + c * V::kWidth);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg p = V::set1(probs[r * tile_kv + j]);
      for (int c = 0; c < kCols; ++c) sum[r][c] = V::fma(p, x[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) V::store(acc + r * stride + c * V::kWidth, sum[r][c]);
}

/// kRows rows that see the same keys. Keys that a row does not see are never multiplied: 0 * NaN would be NaN.
template <class V, int kRows>
void accumulate_rows(const ItemView& v, std::int64_t m, TileKeys keys, const float* corrections) {
  constexpr int kStep = V::kCols * V::kWidth;
  std::int64_t d = 0;
  for (; d + kStep <= v.stride; d += kStep)
    accumulate_block<V, kRows, V::kCols>(v.acc + m * v.stride + d, v.stride, v.scores + m * v.tile_kv, v.tile_kv, v.v_rows + d,
                                         keys, corrections);
  for (; d < v.stride; d += V::kWidth)
    accumulate_block<V, kRows, 1>(v.acc + m * v.stride + d, v.stride, v.scores + m * v.tile_kv, v.tile_kv, v.v_rows + d, keys,
                                  corrections);
}

// ---- one tile, one segment -------------------------------------------------------------------------------------------------

/// Loads K and V of keys [begin, end) of the tile that starts at tile_begin.
template <class V>
void load_tile(const ItemView& v, std::int64_t tile_begin, std::int64_t begin, std::int64_t end) {
  const AttendArgs& a = v.args;
  const std::int64_t head = v.item.kv_head;
  const float k_scale = a.k_scale != nullptr ? a.k_scale[head * a.k_scale_stride] : 1.0f;
  const float v_scale = a.v_scale != nullptr ? a.v_scale[head * a.v_scale_stride] : 1.0f;
  const KvRows rows{v.item.req, QUIRE_PLANTED(kv_head_always_zero) ? 0 : head};
  load_rows<V>(v.rows_kv, a, rows, a.cache_k, a.key, k_scale, tile_begin, begin, end);
  transpose_keys<V>(v.k_columns, v.rows_kv, v.tile_kv, v.stride, begin - tile_begin, end - tile_begin);
  if (QUIRE_PLANTED(stale_value_tile) && tile_begin != 0) return;
  load_rows<V>(v.v_rows, a, rows, a.cache_v, a.value, v_scale, tile_begin, begin, end);
}

/// Scores of keys [begin, end) of a tile -> probabilities -> accumulators. accumulate(m, count, keys, corrections): rows m .. m +
/// count see the same keys.
template <class V, class Accumulate>
void fold_tile(const ItemView& v, std::int64_t begin, std::int64_t end, const semantics::ScoreParams& params,
               Accumulate&& accumulate) {
  const std::int64_t tile_begin = begin / v.tile_kv * v.tile_kv;
  for (std::int64_t m = 0; m < v.num_rows;) {
    const TileKeys keys = v.keys(m, tile_begin, begin, end);
    const std::int64_t block = v.num_rows - m < V::kRows ? v.num_rows - m : V::kRows;
    float corrections[V::kRows];
    std::int64_t alike = 0;  // rows from m on that see the same keys
    while (alike < block && v.keys(m + alike, tile_begin, begin, end) == keys) ++alike;
    for (std::int64_t r = 0; r < alike && !keys.empty(); ++r) {
      const float slope =
          v.args.alibi_slopes != nullptr
              ? v.args
                    .alibi_slopes[(QUIRE_PLANTED(alibi_slope_of_kv_head) ? v.item.kv_head : v.head(m + r)) * v.args.alibi_stride]
              : 0.0f;
      const std::int64_t origin = QUIRE_PLANTED(alibi_origin_shifted) ? v.context_len : v.q_pos(m + r);
      corrections[r] = softmax_row<V>(v.scores + (m + r) * v.tile_kv, keys, params, slope, tile_begin - origin, v.states[m + r]);
    }
    if (!keys.empty()) accumulate(m, alike, keys, corrections);
    m += alike;
  }
}

/// Absorbs keys [begin, end), which lie in one tile, into acc and states.
template <class V>
void absorb_tile(const ItemView& v, std::int64_t begin, std::int64_t end) {
  const std::int64_t tile_begin = begin / v.tile_kv * v.tile_kv;
  load_tile<V>(v, tile_begin, begin, end);
  score_tile<V>(v, {begin - tile_begin, end - tile_begin});
  fold_tile<V>(v, begin, end, v.args.score, [&v](std::int64_t m, std::int64_t count, TileKeys keys, const float* corrections) {
    if (count == V::kRows) return accumulate_rows<V, V::kRows>(v, m, keys, corrections);
    for (std::int64_t r = 0; r < count; ++r) accumulate_rows<V, 1>(v, m + r, keys, corrections + r);
  });
}

/// The same by attend_direct.h: keys [begin, end) lie in `rows`, what follows in `next`.
template <class V>
void absorb_tile_directly(const ItemView& v, const TileRows& rows, const TileRows* next, std::int64_t begin, std::int64_t end) {
  const AttendArgs& a = v.args;
  const std::int64_t head = v.item.kv_head;
  const RowSource& source = rows.fresh ? a.key : a.cache_k;
  const bool scaled = !rows.fresh || QUIRE_PLANTED(scales_on_new_rows);
  DirectTile t{v.query,          v.num_rows, v.stride, a.head_dim, v.tile_kv, &rows, next, a.head_dim * itemsize(source.dtype),
               source.fp8_table, 1.0f};
  semantics::ScoreParams params = a.score;
  if (scaled && a.k_scale != nullptr) params.scale *= a.k_scale[head * a.k_scale_stride];
  if (scaled && a.v_scale != nullptr) t.v_scale = a.v_scale[head * a.v_scale_stride];
  const DirectFunctions direct = direct_functions<V>(source.dtype);
  direct.score(t, v.scores);
  fold_tile<V>(v, begin, end, params, [&](std::int64_t m, std::int64_t count, TileKeys keys, const float* corrections) {
    float *acc = v.acc + m * v.stride, *probs = v.scores + m * v.tile_kv;
    if (count == V::kRows) return direct.accumulate_many(t, acc, probs, keys.begin, keys.end, corrections, m == 0);
    for (std::int64_t r = 0; r < count; ++r)
      direct.accumulate_one(t, acc + r * v.stride, probs + r * v.tile_kv, keys.begin, keys.end, corrections + r, m + r == 0);
  });
}

/// Keys [begin, end) of one segment by the direct path. The first tile beyond is prefetched, too.
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
    absorb_tile_directly<V>(v, rows[current], next, at, stop);
    at = stop;
    stop = after;
  }
}

/// One segment from scratch: acc and states hold its keys [begin, end) afterwards.
template <class V>
void absorb_segment(const ItemView& v, std::int64_t begin, std::int64_t end) {
  if (QUIRE_PLANTED(partial_key_tile_skipped) && end / v.tile_kv * v.tile_kv > begin) end = end / v.tile_kv * v.tile_kv;
  for (std::int64_t i = 0; i < v.num_rows * v.stride && !QUIRE_PLANTED(stale_accumulator); ++i) v.acc[i] = 0.0f;
  for (std::int64_t m = 0; m < v.num_rows && !QUIRE_PLANTED(stale_accumulator); ++m) v.states[m] = SoftmaxState{};
  if (v.direct) return absorb_directly<V>(v, begin, end);
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t next = (at / v.tile_kv + 1) * v.tile_kv;
    const std::int64_t stop = next < end ? next : end;
    absorb_tile<V>(v, at, stop);
    at = stop;
  }
}

// ---- entry points ---------------------------------------------------------------------------------------------------------

template <class V>
void load_queries(const ItemView& v) {
  for (std::int64_t m = 0; m < v.num_rows; ++m)
    load_row<V>(v.query + m * v.stride, v.args.query,
                v.args.query.strides.row(0, v.head(m), QUIRE_PLANTED(query_of_first_row) ? v.first_token : v.token(m)), v.args,
                1.0f);
}

/// KernelEntry::attend.
template <class V>
std::int64_t attend_item(const AttendArgs& args, const WorkItem& item, float* scratch) {
  const ItemView v(args, item, scratch, V::kWidth);
  load_queries<V>(v);
  if (item.partial >= 0) {
    absorb_segment<V>(v, item.key_begin, item.key_end);
    store_partials<V>(v);
    return 0;
  }
  for (std::int64_t i = 0; i < v.num_rows * v.stride; ++i) v.total[i] = 0.0f;
  for (std::int64_t m = 0; m < v.num_rows; ++m) v.totals[m] = SoftmaxState{};
  const std::int64_t split = args.split_keys;
  for (std::int64_t at = item.key_begin; at < item.key_end;) {
    const std::int64_t next = (at / split + 1) * split;
    const std::int64_t stop = next < item.key_end ? next : item.key_end;
    if (QUIRE_PLANTED(last_split_dropped) && at != item.key_begin && stop == item.key_end) break;
    absorb_segment<V>(v, at, stop);
    for (std::int64_t m = 0; m < v.num_rows; ++m)
      fold_row<V>(v.total + m * v.stride, v.totals[m], v.acc + m * v.stride, v.states[m], v.stride);
    at = stop;
  }
  if (QUIRE_PLANTED(decode_rows_not_written) && args.reqs[item.req].query_len == 1) return v.num_rows;
  for (std::int64_t m = 0; m < v.num_rows; ++m) finish_row<V>(args, v.token(m), v.head(m), v.total + m * v.stride, v.totals[m]);
  return v.num_rows;
}

}  // namespace
}  // namespace quire::cpu
