// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Few score rows, many keys: K and V go from the cache into the products, each read once, whatever the group, and
// what comes next is prefetched.
//
// Panels pay when many rows share them; a decode row would write and read every byte of the cache once more. Here a few keys at a
// time are converted into L1 (once for all rows) and lanes are dims: a score is kWidth partial sums over its dims, added up by
// one tree. Softmax, masks and merging are those of the tile path.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/attend_tile.h"
#include "backend/cpu/direct_rows.h"
#include "backend/cpu/direct_values.h"
#include "backend/cpu/elements.h"
#include "backend/cpu/item_view.h"
#include "backend/cpu/panels.h"
#include "backend/cpu/softmax_row.h"
#include "backend/cpu/tile_scales.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kDirectKeys = 4;  // keys scored together
constexpr std::int64_t kFloat = sizeof(float);

// ---- scores -------------------------------------------------------------------------------------------------------------------

/// Sums of kRows rows with four keys, in registers: GCC 12 keeps an array of them in memory around the loop.
template <class V, int kRows>
struct DirectSums {
  using Reg = typename V::Reg;
  Reg a = V::set1(0.0f), b = V::set1(0.0f), c = V::set1(0.0f), d = V::set1(0.0f);
  DirectSums<V, kRows - 1> others;

  __attribute__((always_inline)) void add(const float* query, std::int64_t stride, Reg k0, Reg k1, Reg k2, Reg k3) {
    const Reg q = V::load(query);
    a = V::dot(q, k0, a);
    b = V::dot(q, k1, b);
    c = V::dot(q, k2, c);
    d = V::dot(q, k3, d);
    others.add(query + stride, stride, k0, k1, k2, k3);
  }
  __attribute__((always_inline)) void store(float* scores, std::int64_t pitch) const {
    V::store_sums(scores, a, b, c, d);
    others.store(scores + pitch, pitch);
  }
};
template <class V>
struct DirectSums<V, 0> {
  void add(const float*, std::int64_t, typename V::Reg, typename V::Reg, typename V::Reg, typename V::Reg) {}
  void store(float*, std::int64_t) const {}
};

/// Scores of kRows rows with `fours` times four keys. Every sum is one chain over vectors of dims and one tree over lanes,
/// wherever it stands.
template <class V, DType kType, bool kPieces, int kRows>
void direct_score_block(const ItemView& v, std::int64_t m, std::int64_t j, const std::uint8_t* const* keys, std::int64_t step,
                        std::int64_t fours) {
  const float* query = v.query + m * v.stride;
  float* scores = v.scores + m * v.tile_kv + j;
  const std::int64_t floats = key_floats<V>(v.args), stride = v.stride, pitch = v.tile_kv;
  const auto load = [&](const std::uint8_t* row, std::int64_t d) __attribute__((always_inline)) {
    if constexpr (kPieces) return load_elements_of_pieces<V, kType>(row, d, step);
    return load_elements<V, kType>(row, d);
  };
  for (std::int64_t f = 0; f < fours; ++f, keys += kDirectKeys, scores += kDirectKeys) {
    DirectSums<V, kRows> sums;
    const std::uint8_t* const rows[kDirectKeys] = {keys[0], keys[1], keys[2], keys[3]};
    for (std::int64_t d = 0; d < floats; d += V::kWidth) {
      sums.add(query + d, stride, load(rows[0], d), load(rows[1], d), load(rows[2], d), load(rows[3], d));
    }
    sums.store(scores, pitch);
  }
}

/// All rows against `fours` times four keys.
template <class V, DType kType, bool kPieces = false>
void direct_score_rows(const ItemView& v, std::int64_t j, const std::uint8_t* const* keys, std::int64_t step = 0,
                       std::int64_t fours = 1) {
  static_assert(V::kDirectRows <= 4);
  for (std::int64_t m = 0; m < v.num_rows; m += V::kDirectRows) {
    const std::int64_t rows = v.num_rows - m < V::kDirectRows ? v.num_rows - m : V::kDirectRows;
    if (rows == 1) direct_score_block<V, kType, kPieces, 1>(v, m, j, keys, step, fours);
    if (rows == 2) direct_score_block<V, kType, kPieces, 2>(v, m, j, keys, step, fours);
    if constexpr (V::kDirectRows > 2) {
      if (rows == 3) direct_score_block<V, kType, kPieces, 3>(v, m, j, keys, step, fours);
      if (rows == 4) direct_score_block<V, kType, kPieces, 4>(v, m, j, keys, step, fours);
    }
  }
}

/// All rows against all keys of the tile, where the dims of a key lie side by side and are read as they are, or are widened:
/// sixteen keys at a time, in fours as below.
template <class V, DType kType>
void direct_scores_of_dims(const ItemView& v, const TileRows& rows, const RowSource& source, const Fp8Widener<V>& widen,
                           PrefetchWalk& ahead) {
  constexpr std::int64_t kStep = 16;  // rows of v.staging
  const auto* base = static_cast<const std::uint8_t*>(source.data);
  const std::int64_t size = itemsize(source.dtype), pitch = v.stride * kFloat;
  const bool widened = widen.takes();
  for (std::int64_t step = rows.begin / kStep * kStep; step < rows.end; step += kStep) {
    const std::int64_t first = step > rows.begin ? step : rows.begin, last = step + kStep < rows.end ? step + kStep : rows.end;
    if (widened) widen(rows.k + first, last - first, v.staging, key_floats<V>(v.args) * kFloat, pitch);
    ahead.advance(last - first);
    const std::uint8_t* at[kStep];
    for (std::int64_t i = 0; i < last - first; ++i)
      at[i] = widened ? reinterpret_cast<const std::uint8_t*>(v.staging) + i * pitch : base + rows.k[first + i] * size;
    for (std::int64_t j = first / kDirectKeys * kDirectKeys, next = 0; j < last; j = next) {
      next = j + kDirectKeys;
      if (j >= first && next <= last) {
        const std::int64_t fours = (last - j) / kDirectKeys;
        next = j + fours * kDirectKeys;
        direct_score_rows<V, kType>(v, j, at + (j - first), /*step=*/0, fours);
        continue;
      }
      const std::uint8_t* keys[kDirectKeys];
      for (std::int64_t c = 0; c < kDirectKeys; ++c)
        keys[c] = at[(j + c < first ? first : j + c < last ? j + c : last - 1) - first];
      direct_score_rows<V, kType>(v, j, keys);
    }
  }
}

/// All rows against all keys of the tile, in fours counted from the tile's beginning. Scores beside them are meaningless.
template <class V>
void direct_scores(const ItemView& v, const TileRows& rows, const RowSource& source, PrefetchWalk& ahead) {
  const bool pairs = V::kPairs == 2 && source.dtype == DType::bf16 && v.args.head_dim == 2 * key_floats<V>(v.args);
  const bool pieces = readable_as_pieces(source);
  const bool in_place = (pieces || readable_in_place(source)) && (V::kPairs == 1 || pairs);
  const DType type = in_place && !pairs ? source.dtype : DType::f32;  // pairs are loaded like floats
  static_assert(!V::kWidensFp8 || V::kPairs == 2, "widened keys are pairs");
  const bool code_pieces = are_code_pieces(source);
  auto* const codes = reinterpret_cast<std::uint8_t*>(v.k_panel);  // k_panel is free: the direct path packs no keys
  const RowSource read = code_pieces ? joined_rows(source, codes) : source;
  const JoinedOffsets joined(source);
  const Fp8Widener<V> widen(read);
  if ((in_place && !pieces && type == DType::f32) || (widen.takes() && !code_pieces))
    return direct_scores_of_dims<V, DType::f32>(v, rows, source, widen, ahead);
  const auto* base = static_cast<const std::uint8_t*>(source.data);
  const std::int64_t size = itemsize(source.dtype);
  for (std::int64_t j = rows.begin / kDirectKeys * kDirectKeys; j < rows.end; j += kDirectKeys) {
    std::int64_t offsets[kDirectKeys];
    const std::uint8_t* keys[kDirectKeys];
    for (std::int64_t c = 0; c < kDirectKeys; ++c) {
      offsets[c] = rows.k[j + c < rows.begin ? rows.begin : j + c < rows.end ? j + c : rows.end - 1];
      keys[c] = in_place ? base + offsets[c] * size : reinterpret_cast<const std::uint8_t*>(v.staging + c * v.stride);
    }
    if (code_pieces) join_code_pieces(codes, source, offsets, kDirectKeys);
    if (widen.takes())
      widen(code_pieces ? joined.at : offsets, kDirectKeys, v.staging, key_floats<V>(v.args) * kFloat, v.stride * kFloat);
    else if (!in_place)
      load_keys<V>(v.staging, /*temp=*/v.v_panel, read, code_pieces ? joined.at : offsets, kDirectKeys, v.args);
    ahead.advance(kDirectKeys);
    if (in_place && pieces) {
      const std::int64_t step = source.strides.chunk * size;
      if constexpr (V::kPairs == 2) {
        direct_score_rows<V, DType::f32, true>(v, j, keys, step);
      } else {
        if (type == DType::bf16) direct_score_rows<V, DType::bf16, true>(v, j, keys, step);
        if (type == DType::f16) direct_score_rows<V, DType::f16, true>(v, j, keys, step);
      }
      continue;
    }
    if constexpr (V::kPairs == 1) {
      if (type == DType::bf16) direct_score_rows<V, DType::bf16>(v, j, keys);
      if (type == DType::f16) direct_score_rows<V, DType::f16>(v, j, keys);
    }
    if (type == DType::f32) direct_score_rows<V, DType::f32>(v, j, keys);
  }
}

// ---- one tile, one segment ---------------------------------------------------------------------------------------------------

/// Absorbs the keys of `rows`, which lie in one tile; `next` is the tile after it, or null.
template <class V>
void absorb_tile_directly(const ItemView& v, const TileRows& rows, const TileRows* next, std::int64_t tile_begin) {
  const AttendArgs& a = v.args;
  const bool scaled = V::Faults::is_scaled(rows.fresh);
  const float k_scale = scaled ? key_scale(v) : 1.0f;
  const float v_scale = scaled ? scale_of_head(a.v_scale, a.v_scale_stride, v.item.kv_head) : 1.0f;
  semantics::ScoreParams params = a.score;
  params.scale *= k_scale;
  const auto walk = [&](const RowSource& cached, const RowSource& fresh, const std::int64_t* offsets) {
    return PrefetchWalk(next, next != nullptr && next->fresh ? fresh : cached, offsets, a, rows.end - rows.begin);
  };
  PrefetchWalk k_ahead = walk(a.cache_k, a.key, next != nullptr ? next->k : nullptr);
  direct_scores<V>(v, rows, rows.fresh ? a.key : a.cache_k, k_ahead);
  TileScales scales;
  find_scales(scales, a, v.item.req, v.item.kv_head, tile_begin + rows.begin, tile_begin + rows.end);
  const bool by_key = scaled && scales.given;
  TileKeys keys[kMaxDirectRows];
  float corrections[kMaxDirectRows];
  for (std::int64_t m = 0; m < v.num_rows; ++m) {
    float* row = v.scores + m * v.tile_kv;
    keys[m] = v.keys(m, tile_begin, tile_begin + rows.begin, tile_begin + rows.end);
    if (keys[m].empty()) continue;
    if (by_key) scale_by_key<V>(row, keys[m], scales.k);
    corrections[m] = softmax_row<V>(row, keys[m], params, v.slope(m), tile_begin - V::Faults::alibi_origin(v, m), v.states[m],
                                    HiddenKeys{v, m, tile_begin, /*of_tree=*/false});
    if (by_key) scale_by_key<V>(row, keys[m], scales.v);
    for (std::int64_t j = keys[m].begin / V::kWidth * V::kWidth; j < keys[m].end && v_scale != 1.0f; j += V::kWidth)
      V::store(row + j, V::mul(V::load(row + j), V::set1(v_scale)));
  }
  PrefetchWalk v_ahead = walk(a.cache_v, a.value, next != nullptr ? next->v : nullptr);
  direct_values<V>(v, rows, rows.fresh ? a.value : a.cache_v, keys, corrections, v_ahead);
}

/// Keys [begin, end) of one segment, tile by tile; the first tile beyond is prefetched, too.
template <class V>
void absorb_directly(const ItemView& v, std::int64_t begin, std::int64_t end) {
  const std::int64_t cached = v.args.reqs[v.item.req].cached_len;
  const auto stop_of = [&](std::int64_t at, std::int64_t limit) {
    const std::int64_t stop = v.stop(at, limit);
    return at < cached && cached < stop ? cached : stop;
  };
  begin = v.seen.next(begin);
  if (begin >= end) return;
  TileRows rows[2];
  int current = 0;
  std::int64_t stop = stop_of(begin, end);
  find_rows(rows[0], v.args, v.item.req, v.item.kv_head, begin, stop);
  for (std::int64_t at = begin; at < end; current ^= 1) {
    const std::int64_t start = v.seen.next(stop), limit = start < end ? end : v.item.key_end;
    const std::int64_t after = start < limit ? stop_of(start, limit) : start;
    TileRows* next = after > start ? &rows[current ^ 1] : nullptr;
    if (next != nullptr) find_rows(*next, v.args, v.item.req, v.item.kv_head, start, after);
    absorb_tile_directly<V>(v, rows[current], next, at / v.tile_kv * v.tile_kv);
    at = start;
    stop = after;
  }
}

}  // namespace
}  // namespace quire::cpu
