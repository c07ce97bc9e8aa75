// SPDX-License-Identifier: Apache-2.0
// The CPU attention kernel on Intel AMX: one work item = one KV head of one request, a tile of query rows, a range of keys.
//
// The same algorithm and the same cuts as attend_body.h; the two products run on the tile unit in bf16 with f32 sums. K and V are
// exact in bf16 and the softmax weights are split into three bf16 parts (weights.h), so results are those of an f32 kernel. Up to
// 16 rows (decode): K is read where it lies, as the left operand. More rows (prefill): K is packed once per tile. A row's
// arithmetic depends on its own query, its own keys and their absolute positions only, whatever the path, except with stacked
// parts (up to args.direct_rows rows): there V is read where it lies, too (placed_values.h), and the parts of the weights are
// summed apart and added at the end of a segment. `T` is HardwareTiles or EmulatedTiles. No std templates in here: see
// attend_args.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cpu/amx/placed_values.h"
#include "backend/cpu/amx/products.h"
#include "backend/cpu/attend_args.h"
#include "backend/cpu/elements.h"
#include "backend/cpu/finish_row.h"
#include "backend/cpu/fold_rows.h"
#include "backend/cpu/item_view.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kBlockRows = 2 * kTileRows;  ///< score rows that go through one tile of keys together

/// A work item with the places of its operands in scratch (plan_detail::AmxScratch).
struct AmxItem {
  ItemView view;
  const AttendArgs& args;
  std::int64_t dims, num_rows, acc_rows;
  bool few, stacked;
  bool careful = false;  ///< stacked: elements of V that are not finite are kept out of the products
  std::uint8_t *query, *query_panel, *k_staged, *v_staged, *k_panel, *v_panel;
  float *acc, *total, *scores, *key_scores, *k_factors, *v_factors, *row;
  std::uint32_t* weights;
  SoftmaxState *states, *totals;
  RowStager stage_k, stage_v, stage_key, stage_value;
  bool k_in_place, v_in_place, fresh_k_in_place, fresh_v_in_place;
  float k_scale, v_scale;
  TileRows tiles[2];
  RowPrefetch prefetch;
  std::int64_t prefetch_bytes;  ///< of a row; 0: rows do not lie in one piece
  std::int64_t
      prefetch_places;  ///< calls of prefetch.step() while a tile is worked on; stacked: for its scores, and for its sums
  const TileRows* next = nullptr;  ///< the tile after the current one

  AmxItem(const AttendArgs& a, const WorkItem& w, float* scratch)
      : view(a, w, scratch),
        args(a),
        dims(a.stride),
        num_rows(view.num_rows),
        few(num_rows <= kTileRows),
        stacked(num_rows <= a.direct_rows && kParts * num_rows <= kTileRows),
        stage_k(a.cache_k, a.head_dim, dims),
        stage_v(a.cache_v, a.head_dim, dims),
        stage_key(a.key, a.head_dim, dims),
        stage_value(a.value, a.head_dim, dims) {
    const plan_detail::AmxScratch& at = a.amx_scratch;
    auto* bytes = reinterpret_cast<std::uint8_t*>(scratch);
    acc_rows = stacked ? kParts * num_rows : num_rows;
    query = bytes + at.query, query_panel = bytes + at.query_panel;
    k_staged = bytes + at.k_staged, v_staged = bytes + at.v_staged;
    k_panel = bytes + at.k_panel, v_panel = bytes + at.v_panel;
    acc = reinterpret_cast<float*>(bytes + at.acc), total = reinterpret_cast<float*>(bytes + at.total);
    scores = reinterpret_cast<float*>(bytes + at.scores), key_scores = reinterpret_cast<float*>(bytes + at.key_scores);
    k_factors = reinterpret_cast<float*>(bytes + at.factors), v_factors = k_factors + kTileKeys;
    row = reinterpret_cast<float*>(bytes + at.row);
    weights = reinterpret_cast<std::uint32_t*>(bytes + at.weights);
    states = reinterpret_cast<SoftmaxState*>(bytes + at.states), totals = states + num_rows;
    k_in_place = bf16_in_place(a.cache_k, a.head_dim), v_in_place = bf16_in_place(a.cache_v, a.head_dim);
    fresh_k_in_place = bf16_in_place(a.key, a.head_dim), fresh_v_in_place = bf16_in_place(a.value, a.head_dim);
    k_scale = a.k_scale != nullptr ? a.k_scale[w.kv_head * a.k_scale_stride] : 1.0f;
    v_scale = a.v_scale != nullptr ? a.v_scale[w.kv_head * a.v_scale_stride] : 1.0f;
    // Other layouts than whole rows are not worth asking for line by line.
    const auto whole = [&](const RowSource& s) { return s.strides.dim == 1 && s.strides.x >= a.head_dim; };
    prefetch_bytes = whole(a.cache_k) && whole(a.cache_v) ? a.head_dim * itemsize(a.cache_k.dtype) : 0;
    const std::int64_t operands = kTileKeys / kTileRows * (dims / kVectorDims);
    prefetch_places = stacked ? operands : 2 * operands + (few ? (1 + kParts) * operands : kTileKeys / kTileRows);
  }
  std::int64_t kv_head() const { return view.item.kv_head; }
};

/// Queries as rows of bf16, [padded rows][dims], zero where there is none; packed as well if they are few.
inline void load_amx_queries(const AmxItem& v) {
  const AttendArgs& a = v.args;
  const RowStager stager(a.query, a.query.dims, v.dims);
  for (std::int64_t m = 0; m < plan_detail::amx_padded_rows(v.num_rows); ++m) {
    const std::uint8_t* from = nullptr;
    if (m < v.num_rows)
      from = static_cast<const std::uint8_t*>(a.query.data) + 2 * a.query.strides.row(0, v.view.head(m), v.view.token(m));
    stager.stage(from, reinterpret_cast<std::uint16_t*>(v.query + 2 * m * v.dims));
  }
  if (!v.few) return;
  const std::uint8_t* rows[kTileRows];
  for (std::int64_t m = 0; m < kTileRows; ++m) rows[m] = v.query + 2 * m * v.dims;
  pack_columns(rows, v.dims, v.query_panel);
}

/// Rows of keys [first, last) of a tile as whole rows of bf16, indexed by key: the cache's own if they lie there like that, else
/// copies in `staged`, whose addresses go to `rows`.
inline const std::uint8_t* const* whole_rows(const AmxItem& v, const TileRows& tile, bool values, std::int64_t first,
                                             std::int64_t last, const std::uint8_t** rows) {
  std::uint8_t* staged = values ? v.v_staged : v.k_staged;
  const std::uint8_t* const* from = values ? tile.v : tile.k;
  const RowStager& cached = values ? v.stage_v : v.stage_k;
  const RowStager& fresh = values ? v.stage_value : v.stage_key;
  const bool cached_in_place = values ? v.v_in_place : v.k_in_place;
  const bool fresh_in_place = values ? v.fresh_v_in_place : v.fresh_k_in_place;
  const bool all_cached = first >= tile.begin && last <= tile.end && last <= tile.fresh;
  if (all_cached && cached_in_place) return from;
#ifdef __AVX512VBMI__
  if (all_cached && cached.vector_fp8()) {
    for (std::int64_t j = first; j < last; ++j) rows[j] = staged + 2 * j * v.dims;
    cached.stage_fp8(from + first, last - first, staged + 2 * first * v.dims);
    return rows;
  }
#endif
#ifdef __AVX512VBMI__
  if (all_cached && cached.vector_code_pieces()) {
    for (std::int64_t j = first; j < last; ++j) rows[j] = staged + 2 * j * v.dims;
    cached.stage_code_pieces(from + first, last - first, reinterpret_cast<std::uint16_t*>(staged + 2 * first * v.dims));
    return rows;
  }
#endif
  for (std::int64_t j = first; j < last; ++j) {
    const bool is_fresh = j >= tile.fresh;
    if (j % kTurnedTokens == 0 && j + kTurnedTokens <= last && j + kTurnedTokens <= tile.fresh &&
        cached.stage_tokens(from + j, reinterpret_cast<std::uint16_t*>(staged + 2 * j * v.dims))) {
      for (std::int64_t i = 0; i < kTurnedTokens; ++i) rows[j + i] = staged + 2 * (j + i) * v.dims;
      j += kTurnedTokens - 1;
      continue;
    }
    rows[j] = from[j];
    if (from[j] != nullptr && (is_fresh ? fresh_in_place : cached_in_place)) continue;
    std::uint8_t* to = staged + 2 * j * v.dims;
    (is_fresh ? fresh : cached).stage(from[j], reinterpret_cast<std::uint16_t*>(to));
    rows[j] = to;
  }
  return rows;
}

/// A block of 16 keys as an operand, copied to `panel`.
inline KeyBlock copied_block(const AmxItem& v, const std::uint8_t* const* rows, std::int64_t j, std::uint8_t* panel) {
  std::uint8_t* copy = panel + 2 * j * v.dims;
  for (std::int64_t i = 0; i < kTileRows; ++i)
    for (std::int64_t d = 0; d < v.dims; d += kVectorDims)
      _mm512_store_si512(copy + 2 * (i * v.dims + d), _mm512_loadu_si512(rows[j + i] + 2 * d));
  return {copy, 2 * v.dims};
}

/// The tile where it lies in the cache, if its rows lie evenly.
inline KeyBlock key_block(const AmxItem& v, const std::uint8_t* const* rows, std::int64_t j, std::uint8_t* panel) {
  const std::int64_t stride = rows[j + 1] - rows[j];
  return evenly_spaced(rows + j, stride) ? KeyBlock{rows[j], stride} : copied_block(v, rows, j, panel);
}

/// [16 keys][16 rows] -> [row][kTileKeys], the first `rows` of them.
inline void scores_of_rows(const float* from, std::int64_t rows, float* to) {
  if (rows > 4) return transpose_block<Avx512Simd>(from, 16, to, kTileKeys);
  __m512 key[4];  // 128-bit lane i of key[k]: the rows of key 4 i + k
  for (int k = 0; k < 4; ++k) {
    key[k] = _mm512_castps128_ps512(_mm_load_ps(from + 16 * k));
    key[k] = _mm512_insertf32x4(key[k], _mm_load_ps(from + 16 * (4 + k)), 1);
    key[k] = _mm512_insertf32x4(key[k], _mm_load_ps(from + 16 * (8 + k)), 2);
    key[k] = _mm512_insertf32x4(key[k], _mm_load_ps(from + 16 * (12 + k)), 3);
  }
  const __m512 a = _mm512_unpacklo_ps(key[0], key[1]), b = _mm512_unpackhi_ps(key[0], key[1]);
  const __m512 c = _mm512_unpacklo_ps(key[2], key[3]), d = _mm512_unpackhi_ps(key[2], key[3]);
  _mm512_store_ps(to, _mm512_shuffle_ps(a, c, 0x44));
  _mm512_store_ps(to + kTileKeys, _mm512_shuffle_ps(a, c, 0xEE));
  _mm512_store_ps(to + 2 * kTileKeys, _mm512_shuffle_ps(b, d, 0x44));
  _mm512_store_ps(to + 3 * kTileKeys, _mm512_shuffle_ps(b, d, 0xEE));
}

/// Scores of few rows with the tile's chunks: [row][kTileKeys].
template <class T>
void score_few_rows(AmxItem& v, const TileRows& tile, ChunkRange chunks) {
  const std::uint8_t* rows[kTileKeys];
  for (std::int64_t j = chunks.begin * kChunkKeys / 64 * 64; j < chunks.end * kChunkKeys; j += 64) {
    const std::uint8_t* const* found = whole_rows(v, tile, /*values=*/false, j, j + 64, rows);
    KeyBlock blocks[4];
    for (int b = 0; b < 4; ++b) blocks[b] = key_block(v, found, j + 16 * b, v.k_panel);
    for (int b = 0; b < 4; b += 2)
      score_key_blocks<T>(blocks + b, v.query_panel, v.dims, v.key_scores + 256 * b, [&] { v.prefetch.step(); });
    for (int b = 0; b < 4; ++b) scores_of_rows(v.key_scores + 256 * b, v.num_rows, v.scores + j + 16 * b);
  }
}

/// The tile's chunks of K as panels.
inline void pack_keys(AmxItem& v, const TileRows& tile, ChunkRange chunks) {
  const std::uint8_t* rows[kTileKeys];
  const std::uint8_t* const* found =
      whole_rows(v, tile, /*values=*/false, chunks.begin * kChunkKeys, chunks.end * kChunkKeys, rows);
  for (std::int64_t j = chunks.begin * kChunkKeys; j < chunks.end * kChunkKeys; j += kTileRows) {
    pack_columns(found + j, v.dims, v.k_panel + j / kTileRows * (v.dims / kVectorDims) * kTileBytes);
    v.prefetch.step();
  }
}

/// The tile's chunks of V as panels, non-finite elements as zero; returns whether there are such elements.
inline bool pack_tile_values(AmxItem& v, const TileRows& tile, ChunkRange chunks) {
  const std::uint8_t* rows[kTileKeys];
  bool finite = true;
  for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    const std::int64_t j = chunk * kChunkKeys;
    const std::uint8_t* const* found = whole_rows(v, tile, /*values=*/true, j, j + kChunkKeys, rows);
    finite &= pack_values(found + j, v.dims, v.v_panel + chunk * (v.dims / 16) * kTileBytes, [&] { v.prefetch.step(); });
  }
  return finite;
}

/// Zeroes the non-finite elements of packed chunks: a row that does not see such a key must not multiply it, not even by zero.
inline void take_out_non_finite(AmxItem& v, ChunkRange chunks) {
  auto* codes = reinterpret_cast<std::uint16_t*>(v.v_panel + chunks.begin * (v.dims / 16) * kTileBytes);
  const std::int64_t count = (chunks.end - chunks.begin) * kChunkKeys * v.dims;
  for (std::int64_t i = 0; i < count; ++i)
    if (!finite_bf16(codes[i])) codes[i] = 0;
}

inline PlacedWeights placed_weights(const AmxItem& v, std::int64_t m) {
  return {v.weights + m * kBlockKeys, v.num_rows * kBlockKeys};
}

/// acc += weight * V for the non-finite elements of V, for row m and the keys that it sees.
inline void add_non_finite(AmxItem& v, const TileRows& tile, std::int64_t tile_begin, std::int64_t m) {
  constexpr std::int64_t kRowWords = kTileKeys / 2;
  const TileKeys keys = v.view.keys(m, tile_begin, tile_begin + tile.begin, tile_begin + tile.end);
  const auto weight = [&](std::int64_t j) {
    if (v.stacked) return placed_weights(v, m).at(j);
    return WeightRow{v.weights + m % kBlockRows * kRowWords, kBlockRows * kRowWords}.at(j);
  };
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const std::uint8_t* rows[kTileKeys];
    const auto* codes = reinterpret_cast<const std::uint16_t*>(whole_rows(v, tile, /*values=*/true, j, j + 1, rows)[j]);
    for (std::int64_t d = 0; d < v.args.head_dim; ++d) {
      const std::int64_t at = v.stacked ? placed_accumulator_index(d) : accumulator_index(d);
      if (!finite_bf16(codes[d])) v.acc[m * v.dims + at] += weight(j) * semantics::bf16_decode(codes[d]);
    }
  }
}

/// The factors of a tile's keys: scales belong to cached tokens only.
template <class T>
KeyFactors factors_of(AmxItem& v, const TileRows& tile) {
  if (v.k_scale == 1.0f && v.v_scale == 1.0f) return {};
  for (std::int64_t j = 0; j < kTileKeys; ++j) {
    const bool scaled = T::Faults::is_scaled(j >= tile.fresh);
    v.k_factors[j] = scaled ? v.k_scale : 1.0f;
    v.v_factors[j] = scaled ? v.v_scale : 1.0f;
  }
  return {v.k_scale != 1.0f ? v.k_factors : nullptr, v.v_scale != 1.0f ? v.v_factors : nullptr};
}

inline void scale_row(float* acc, std::int64_t dims, float factor) {
  for (std::int64_t d = 0; d < dims; d += 16)
    Avx512Simd::store(acc + d, Avx512Simd::mul(Avx512Simd::load(acc + d), Avx512Simd::set1(factor)));
}

/// Weights of rows [m, m + count) of the tile; rescales their accumulators.
template <class T>
void weigh_rows(AmxItem& v, std::int64_t m, std::int64_t count, std::int64_t tile_begin, TileKeys tile, ChunkRange chunks,
                const KeyFactors& factors) {
  constexpr std::int64_t kRowWords = kTileKeys / 2;
  TileKeys keys[kBlockRows];
  float maxima[kBlockRows], scales[kBlockRows];
  // All maxima first: what each of them waits for hides behind the other rows.
  for (std::int64_t r = 0; r < count; ++r) {
    const RowScore row{v.args.score, v.view.slope(m + r), tile_begin - T::Faults::alibi_origin(v.view, m + r)};
    keys[r] = v.view.keys(m + r, tile_begin, tile_begin + tile.begin, tile_begin + tile.end);
    const bool whole = keys[r].begin == 0 && keys[r].end == kTileKeys && plain_scores(row, factors.k);
    scales[r] = whole ? v.args.score.scale : 1.0f;
    float* dots = v.scores + r * kTileKeys;
    maxima[r] = whole             ? largest_dot(dots) * scales[r]
                : keys[r].empty() ? -INFINITY
                                  : logits_of_row(dots, keys[r], row, factors.k);
    if (v.stacked) v.prefetch.step(2);
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const auto weigh = [&](const auto& out) {
      return weigh_row(v.scores + r * kTileKeys, scales[r], maxima[r], keys[r], chunks, factors.v, v.states[m + r], out);
    };
    const float correction = T::Faults::correction(
        v.stacked ? weigh(placed_weights(v, m + r)) : weigh(WeightRow{v.weights + r * kRowWords, kBlockRows * kRowWords}));
    if (v.stacked) v.prefetch.step(2);
    if (correction == 1.0f) continue;
    for (std::int64_t at = m + r; at < v.acc_rows; at += v.num_rows) scale_row(v.acc + at * v.dims, v.dims, correction);
  }
}

/// Rows of V of the tile's chunks as right operands, where they lie or copied.
inline void place_values(AmxItem& v, const TileRows& tile, ChunkRange chunks, KeyBlock* blocks) {
  const std::uint8_t* rows[kTileKeys];
  const std::uint8_t* const* found =
      whole_rows(v, tile, /*values=*/true, chunks.begin * kChunkKeys, chunks.end * kChunkKeys, rows);
  for (std::int64_t b = 2 * chunks.begin; b < 2 * chunks.end; ++b) {
    if (b % 2 == 0) v.prefetch.step();
    blocks[b] = v.careful ? copied_block(v, found, b * kBlockKeys, v.v_panel) : key_block(v, found, b * kBlockKeys, v.v_panel);
  }
  if (v.careful) take_out_non_finite(v, chunks);
}

/// Few rows against keys [begin, end) of one tile: neither K nor V is packed.
template <class T>
void absorb_stacked_tile(AmxItem& v, const TileRows& tile, std::int64_t tile_begin) {
  const std::int64_t begin = tile_begin + tile.begin, end = tile_begin + tile.end, last_row = v.num_rows - 1;
  const TileKeys seen{v.view.keys(0, tile_begin, begin, end).begin, v.view.keys(last_row, tile_begin, begin, end).end};
  if (seen.empty()) return;
  const ChunkRange chunks = chunks_of(seen);
  score_few_rows<T>(v, tile, chunks);
  weigh_rows<T>(v, 0, v.num_rows, tile_begin, {tile.begin, tile.end}, chunks, factors_of<T>(v, tile));
  KeyBlock values[kTileKeys / kBlockKeys];
  place_values(v, tile, chunks, values);
  v.prefetch.rest();
  if (v.next != nullptr) v.prefetch = RowPrefetch(v.next->k, nullptr, v.prefetch_bytes, v.prefetch_places);
  accumulate_placed_rows<T>(v.acc, v.dims, v.weights, values, chunks, [&] { v.prefetch.step(); });
  for (std::int64_t m = 0; m < v.num_rows && v.careful; ++m) add_non_finite(v, tile, tile_begin, m);
}

/// All rows against keys [begin, end) of one tile.
template <class T>
void absorb_amx_tile(AmxItem& v, const TileRows& tile, std::int64_t tile_begin) {
  constexpr std::int64_t kRowWords = kTileKeys / 2;
  const TileKeys seen{tile.begin, tile.end};
  const ChunkRange all = chunks_of(seen);
  if (!v.few) pack_keys(v, tile, all);
  const bool finite = T::Faults::is_finite(pack_tile_values(v, tile, all));
  if (!finite) take_out_non_finite(v, all);
  const KeyFactors factors = factors_of<T>(v, tile);

  for (std::int64_t m = 0; m < v.num_rows; m += kBlockRows) {
    const std::int64_t count = v.num_rows - m < kBlockRows ? v.num_rows - m : kBlockRows;
    const bool two = count > kTileRows;
    const TileKeys first = v.view.keys(m, tile_begin, tile_begin + tile.begin, tile_begin + tile.end);
    const TileKeys last = v.view.keys(m + count - 1, tile_begin, tile_begin + tile.begin, tile_begin + tile.end);
    // Both ends of a row's keys grow with the row.
    const TileKeys block{first.begin, last.end};
    if (block.empty()) continue;
    const ChunkRange chunks = chunks_of(block);
    if (v.few) {
      score_few_rows<T>(v, tile, chunks);
    } else {
      for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
        const std::uint8_t* panel = v.k_panel + chunk * 2 * (v.dims / kVectorDims) * kTileBytes;
        (two ? score_chunk<T, 2> : score_chunk<T, 1>)(v.query + 2 * m * v.dims, v.dims, panel, v.scores + chunk * kChunkKeys,
                                                      kTileKeys);
      }
    }
    weigh_rows<T>(v, m, count, tile_begin, seen, chunks, factors);
    WeightBlock weights{v.weights, kRowWords, kBlockRows * kRowWords, chunks};
    if (v.few)
      accumulate_rows<T, 1>(v.acc, v.dims, weights, v.v_panel, [&] { v.prefetch.step(); });
    else if (two)
      accumulate_rows<T, 2>(v.acc + m * v.dims, v.dims, weights, v.v_panel, [] {});
    else
      accumulate_rows<T, 1>(v.acc + m * v.dims, v.dims, weights, v.v_panel, [] {});
    for (std::int64_t r = 0; r < count && !finite; ++r) add_non_finite(v, tile, tile_begin, m + r);
  }
}

/// Keys [begin, end) from scratch. Their first tile's rows are in v.tiles; afterwards those of the tile that follows are.
template <class T>
void absorb_amx_keys(AmxItem& v, std::int64_t begin, std::int64_t end, std::int64_t item_end) {
  for (std::int64_t i = 0; i < v.acc_rows * v.dims; i += 16)
    Avx512Simd::store(v.acc + i, T::Faults::at_start(Avx512Simd::load(v.acc + i)));
  for (std::int64_t m = 0; m < v.num_rows; ++m) v.states[m] = T::Faults::at_start(v.states[m]);
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t next = (at / kTileKeys + 1) * kTileKeys;
    const std::int64_t stop = next < end ? next : end;
    TileRows& now = v.tiles[at / kTileKeys % 2];
    TileRows& then = v.tiles[(at / kTileKeys + 1) % 2];
    // Few rows: what is asked for now is needed half a tile later, while it still is in L1.
    if (v.stacked) v.prefetch = RowPrefetch(now.v, nullptr, v.prefetch_bytes, v.prefetch_places + 4 * v.num_rows + 8);
    v.prefetch.step(2);
    v.next = stop < item_end ? &then : nullptr;
    if (v.next != nullptr) {
      const std::int64_t then_end = stop + kTileKeys < item_end ? stop + kTileKeys : item_end;
      find_tile_rows(then, v.args, v.view.item.req, v.kv_head(), stop, then_end);
    }
    v.prefetch.step(2);
    if (!v.stacked)
      v.prefetch = v.next == nullptr ? RowPrefetch() : RowPrefetch(then.k, then.v, v.prefetch_bytes, v.prefetch_places);
    (v.stacked ? absorb_stacked_tile<T> : absorb_amx_tile<T>)(v, now, at / kTileKeys * kTileKeys);
    v.prefetch.rest();
    at = stop;
  }
}

inline bool accumulators_finite(const AmxItem& v) {
  const __m512i exponent = _mm512_set1_epi32(0x7F800000);
  __mmask16 found = 0;
  for (std::int64_t i = 0; i < v.acc_rows * v.dims; i += 16)
    found |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_load_si512(v.acc + i), exponent), exponent);
  return found == 0;
}

/// One segment: acc and states hold its keys [begin, end) afterwards. As above; item_end is where the item's keys end.
template <class T>
void absorb_amx_segment(AmxItem& v, std::int64_t begin, std::int64_t end, std::int64_t item_end) {
  absorb_amx_keys<T>(v, begin, end, item_end);
  if (!v.stacked || T::Faults::is_finite(accumulators_finite(v))) return;
  // An element of V that is not finite may have met rows that do not see it, and its neighbour: again, with care.
  const std::int64_t stop = (begin / kTileKeys + 1) * kTileKeys;
  find_tile_rows(v.tiles[begin / kTileKeys % 2], v.args, v.view.item.req, v.kv_head(), begin, stop < item_end ? stop : item_end);
  v.careful = true;
  absorb_amx_keys<T>(v, begin, end, item_end);
  v.careful = false;
}

/// Row m of the segment in natural order of dims, the parts added up.
inline const float* segment_row(const AmxItem& v, std::int64_t m) {
  const float* high = v.acc + m * v.dims;
  for (std::int64_t d = 0; d < v.dims; d += 32) (v.stacked ? placed_natural_order : natural_order)(high + d, v.row + d);
  if (!v.stacked) return v.row;
  for (std::int64_t d = 0; d < v.dims; d += 32) {
    float part[32];
    for (int i = 1; i < kParts; ++i) {
      placed_natural_order(high + i * v.num_rows * v.dims + d, part);
      for (int half = 0; half < 32; half += 16)
        Avx512Simd::store(v.row + d + half, Avx512Simd::add(Avx512Simd::load(v.row + d + half), Avx512Simd::load(part + half)));
    }
  }
  return v.row;
}

inline void store_amx_partials(const AmxItem& v) {
  for (std::int64_t m = 0; m < v.num_rows; ++m) {
    const std::int64_t index = v.view.item.partial + m;
    const float* from = segment_row(v, m);
    for (std::int64_t d = 0; d < v.dims; d += 16)
      Avx512Simd::store(v.args.partial_acc + index * v.dims + d, Avx512Simd::load(from + d));
    v.args.partial_states[2 * index] = v.states[m].max;
    v.args.partial_states[2 * index + 1] = v.states[m].sum;
  }
}

/// KernelEntry::attend.
template <class T>
std::int64_t attend_amx_item(const AttendArgs& args, const WorkItem& item, float* scratch) {
  AmxItem v(args, item, scratch);
  T::configure(kTileRows);
  load_amx_queries(v);
  if (item.key_begin < item.key_end) {
    const std::int64_t stop = (item.key_begin / kTileKeys + 1) * kTileKeys;
    TileRows& first = v.tiles[item.key_begin / kTileKeys % 2];
    find_tile_rows(first, args, item.req, v.kv_head(), item.key_begin, stop < item.key_end ? stop : item.key_end);
    RowPrefetch(first.k, v.stacked ? nullptr : first.v, v.prefetch_bytes, 1).rest();
  }
  if (item.partial >= 0) {
    absorb_amx_segment<T>(v, item.key_begin, item.key_end, item.key_end);
    store_amx_partials(v);
    T::release();
    return 0;
  }
  for (std::int64_t i = 0; i < v.num_rows * v.dims; ++i) v.total[i] = 0.0f;
  for (std::int64_t m = 0; m < v.num_rows; ++m) v.totals[m] = SoftmaxState{};
  for (std::int64_t at = item.key_begin; at < item.key_end;) {
    const std::int64_t next = (at / args.split_keys + 1) * args.split_keys;
    const std::int64_t stop = next < item.key_end ? next : item.key_end;
    absorb_amx_segment<T>(v, at, stop, item.key_end);
    for (std::int64_t m = 0; m < v.num_rows; ++m)
      fold_row<Avx512Simd, typename T::Faults>(v.total + m * v.dims, v.totals[m], segment_row(v, m), v.states[m], v.dims);
    at = stop;
  }
  T::release();
  for (std::int64_t m = 0; m < v.num_rows; ++m)
    finish_row<Avx512Simd>(args, v.view.token(m), v.view.head(m), v.total + m * v.dims, v.totals[m]);
  return v.num_rows;
}

}  // namespace
}  // namespace quire::cpu
