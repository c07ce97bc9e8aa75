// The CPU attention kernel, once: one work item = one KV head of one request, a tile of query rows, a range of keys.
//
// Algorithm (FlashAttention-2 order, Dao 2023, arXiv:2307.08691): for each segment of split_keys keys, for each tile of tile_kv
// keys: convert K and V to f32, S = Q K^T, score, mask, running softmax, acc = acc * correction + P V; then fold the segment.
// Every row's arithmetic depends on its own query, its own keys and their absolute positions only; rows and threads share
// tiles but never partial sums. That makes results batch-invariant and independent of how work is cut.
// `V` is the instruction set: simd_scalar.h, simd_avx2.h, simd_avx512.h. No std templates in here: an out-of-line copy of one
// compiled for AVX-512 could serve the whole program.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/attend_direct.h"
#include "backend/cpu/attend_tile.h"
#include "backend/cpu/planted.h"
#include "semantics/softmax_state.h"
#include "semantics/visible_range.h"

namespace quire::cpu {
namespace {

using semantics::SoftmaxState;

/// Half-open range of key indices within a tile.
struct TileKeys {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool empty() const { return begin >= end; }
  bool operator==(const TileKeys& o) const { return begin == o.begin && end == o.end; }
};

/// A work item with its pointers: score row m is query row m / group of the item and head m % group of the KV head's group.
struct ItemView {
  const AttendArgs& args;
  const WorkItem& item;
  std::int64_t group, stride, tile_kv, num_rows, context_len, first_token;
  float *query, *acc, *total, *rows_kv, *k_columns, *v_rows, *scores;
  SoftmaxState *states, *totals;
  bool direct;  ///< attend_direct.h instead of tiles in scratch

  ItemView(const AttendArgs& a, const WorkItem& w, float* scratch, int width) : args(a), item(w) {
    const plan_detail::ThreadScratch& at = a.scratch;
    group = a.group;
    stride = a.stride;
    tile_kv = a.tile_kv;
    num_rows = (w.row_end - w.row_begin) * group;
    context_len = a.reqs[w.req].context_len;
    first_token = a.query_start_loc[w.req] + w.row_begin;
    query = scratch + at.query;
    acc = scratch + at.acc;
    total = scratch + at.total;
    rows_kv = scratch + at.rows_kv;
    k_columns = scratch + at.k_columns;
    v_rows = scratch + at.v_rows;
    scores = scratch + at.scores;
    states = reinterpret_cast<SoftmaxState*>(scratch + at.states);
    totals = states + num_rows;
    direct = takes_direct_path(a, num_rows, width);
  }
  std::int64_t head(std::int64_t m) const { return item.kv_head * group + m % group; }
  std::int64_t token(std::int64_t m) const { return first_token + m / group; }
  std::int64_t q_pos(std::int64_t m) const { return context_len + item.row_begin + m / group; }
  /// Keys of [first, last) that row m sees, relative to tile_begin.
  TileKeys keys(std::int64_t m, std::int64_t tile_begin, std::int64_t first, std::int64_t last) const {
    semantics::KeyRange seen = semantics::visible_range(q_pos(m), args.window);
    if (QUIRE_PLANTED(window_one_short) && seen.begin > 0) ++seen.begin;
    if (QUIRE_PLANTED(causal_sees_one_future_key)) ++seen.end;
    if (QUIRE_PLANTED(causal_excludes_own_key)) --seen.end;
    const std::int64_t begin = seen.begin > first ? seen.begin : first;
    const std::int64_t end = seen.end < last ? seen.end : last;
    return {begin - tile_begin, end - tile_begin};
  }
};

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

// ---- scores -> probabilities ---------------------------------------------------------------------------------------------

/// Turns one row of raw dot products into exp(s - max) in place, zero for keys it does not see; updates the row's state and
/// returns the factor for what the row has accumulated so far.
template <class V>
float softmax_row(float* row, TileKeys keys, const semantics::ScoreParams& params, float slope, std::int64_t tile_minus_q_pos,
                  SoftmaxState& state) {
  const std::int64_t first = keys.begin / V::kWidth * V::kWidth;
  const auto minus_inf = V::set1(-INFINITY);
  auto best = minus_inf;
  bool nan = false;
  for (std::int64_t j = first; j < keys.end; j += V::kWidth) {
    const auto distance = V::add(V::lanes(), V::set1(static_cast<float>(tile_minus_q_pos + j)));
    auto s = semantics::score<V>(V::load(row + j), params, slope, distance);
    s = V::keep(s, static_cast<int>(j), static_cast<int>(keys.begin), static_cast<int>(keys.end), minus_inf);
    best = V::max_ignoring_nan(s, best);
    nan |= V::any_nan(s);
    V::store(row + j, s);
  }
  const float tile_max = V::reduce_max(best);
  float max = tile_max > state.max ? tile_max : state.max;
  if (max == -INFINITY) {
    // No visible key with a finite score so far: contributes nothing. A NaN score must still poison the row.
    for (std::int64_t j = first; j < keys.end; j += V::kWidth) V::store(row + j, nan ? V::load(row + j) : V::set1(0.0f));
    if (nan) state = {0.0f, NAN};
    return 1.0f;
  }
  auto sum = V::set1(0.0f);
  for (std::int64_t j = first; j < keys.end; j += V::kWidth) {
    const auto p = V::exp(V::sub(V::load(row + j), V::set1(max)));
    sum = V::add(sum, p);
    V::store(row + j, p);
  }
  const float correction = state.max == max ? 1.0f : expf(state.max - max);
  state = {max, state.sum * correction + V::reduce_add(sum)};
  return QUIRE_PLANTED(maximum_not_rescaled) ? 1.0f : correction;
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

/// total = total + part, in place. An empty side leaves the other's bits alone.
template <class V>
void fold_row(float* total, SoftmaxState& total_state, const float* part, const SoftmaxState& part_state, std::int64_t stride) {
  if (part_state.max == -INFINITY) return;
  if (total_state.max == -INFINITY) {
    for (std::int64_t d = 0; d < stride; d += V::kWidth) V::store(total + d, V::load(part + d));
    total_state = part_state;
    return;
  }
  const semantics::Merged merged = semantics::combine(total_state, part_state);
  const auto weight_a = V::set1(QUIRE_PLANTED(merge_not_rescaled) ? 1.0f : merged.weight_a);
  const auto weight_b = V::set1(merged.weight_b);
  for (std::int64_t d = 0; d < stride; d += V::kWidth)
    V::store(total + d, V::fma(V::load(part + d), weight_b, V::mul(V::load(total + d), weight_a)));
  total_state = merged.state;
}

// ---- finish: sink, division, store --------------------------------------------------------------------------------------

template <class V>
void store_row(const AttendArgs& args, std::int64_t token, std::int64_t head, const float* row) {
  const std::int64_t head_dim = args.head_dim;
  const semantics::KvStrides& s = args.output_strides;
  const std::int64_t offset = s.row(0, head, token);
  auto* words = static_cast<std::uint16_t*>(args.output) + offset;
  std::int64_t d = 0;
  if (s.dim == 1) {
    for (; d + V::kWidth <= head_dim; d += V::kWidth) {
      const auto x = V::load(row + d);
      if (args.output_dtype == DType::f32)
        V::store(static_cast<float*>(args.output) + offset + d, x);
      else if (args.output_dtype == DType::f16)
        V::store_f16(words + d, x);
      else
        V::store_bf16(words + d, x);
    }
  }
  for (; d < (QUIRE_PLANTED(row_padding_written) ? args.stride : head_dim); ++d)
    semantics::store(args.output, args.output_dtype, offset + s.element(d), row[d]);
}

/// Adds the sink, normalises `total` in place and writes the row and its lse.
template <class V>
void finish_row(const AttendArgs& args, std::int64_t token, std::int64_t head, float* total, SoftmaxState state) {
  const std::int64_t stride = args.stride;
  float weight = 1.0f;
  if (args.sinks != nullptr && !QUIRE_PLANTED(sinks_dropped)) {
    const semantics::Merged merged = semantics::combine_sink(state, args.sinks[head * args.sinks_stride]);
    state = merged.state;
    weight = merged.weight_a;
  }
  // No visible key and no sink: the sum is 0, the accumulator is 0 and the row is 0.
  const float sum = state.max == -INFINITY ? 1.0f : state.sum;
  for (std::int64_t d = 0; d < stride; d += V::kWidth)
    V::store(total + d, V::div(V::mul(V::load(total + d), V::set1(weight)), V::set1(sum)));
  if (QUIRE_PLANTED(heads_swapped_in_pairs)) head ^= 1;
  store_row<V>(args, token, head, total);
  if (args.lse != nullptr)
    args.lse[token * args.lse_token + head * args.lse_head] =
        semantics::log_sum_exp(state) * (QUIRE_PLANTED(lse_base_2) ? 1.4426950f : 1.0f);
}

// ---- entry points ---------------------------------------------------------------------------------------------------------

template <class V>
void load_queries(const ItemView& v) {
  for (std::int64_t m = 0; m < v.num_rows; ++m)
    load_row<V>(v.query + m * v.stride, v.args.query,
                v.args.query.strides.row(0, v.head(m), QUIRE_PLANTED(query_of_first_row) ? v.first_token : v.token(m)), v.args,
                1.0f);
}

/// Split-KV: the item is one segment; its un-normalised accumulators and states go to the workspace.
template <class V>
void store_partials(const ItemView& v) {
  for (std::int64_t m = 0; m < v.num_rows; ++m) {
    const std::int64_t index = v.item.partial + m;
    float* out = v.args.partial_acc + index * v.stride;
    for (std::int64_t d = 0; d < v.stride; d += V::kWidth) V::store(out + d, V::load(v.acc + m * v.stride + d));
    v.args.partial_states[2 * index] = v.states[m].max;
    v.args.partial_states[2 * index + 1] = v.states[m].sum;
  }
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

/// KernelEntry::merge.
template <class V>
std::int64_t merge_item(const AttendArgs& args, const MergeItem& item, float* scratch) {
  const std::int64_t group = args.group;
  const std::int64_t stride = args.stride;
  const std::int64_t num_rows = (item.row_end - item.row_begin) * group;
  for (std::int64_t m = 0; m < num_rows; ++m) {
    SoftmaxState state;
    for (std::int64_t d = 0; d < stride; ++d) scratch[d] = 0.0f;
    for (std::int64_t part = 0; part < item.num_partials; ++part) {
      if (QUIRE_PLANTED(last_split_dropped) && part > 0 && part + 1 == item.num_partials) break;
      const std::int64_t index = item.first_partial + part * num_rows + m;
      const SoftmaxState part_state{args.partial_states[2 * index], args.partial_states[2 * index + 1]};
      fold_row<V>(scratch, state, args.partial_acc + index * stride, part_state, stride);
    }
    if (QUIRE_PLANTED(decode_rows_not_written) && args.reqs[item.req].query_len == 1) continue;
    const std::int64_t token = args.query_start_loc[item.req] + item.row_begin + m / group;
    finish_row<V>(args, token, item.kv_head * group + m % group, scratch, state);
  }
  return num_rows;
}

}  // namespace
}  // namespace quire::cpu
