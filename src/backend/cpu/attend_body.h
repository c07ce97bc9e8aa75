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
#include "backend/cpu/tile_path.h"

namespace quire::cpu {
namespace {

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
      corrections[r] = softmax_row<V>(v.scores + (m + r) * v.tile_kv, keys, params, v.slope(m + r),
                                      tile_begin - v.alibi_origin(m + r), v.states[m + r]);
    }
    if (!keys.empty()) accumulate(m, alike, keys, corrections);
    m += alike;
  }
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
