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

#include "backend/cpu/amx/amx_item.h"
#include "backend/cpu/amx/placed_values.h"
#include "backend/cpu/amx/products.h"
#include "backend/cpu/amx/tile_work.h"
#include "backend/cpu/amx/weigh_rows.h"
#include "backend/cpu/attend_args.h"
#include "backend/cpu/elements.h"
#include "backend/cpu/finish_row.h"
#include "backend/cpu/fold_rows.h"
#include "backend/cpu/item_view.h"

namespace quire::cpu {
namespace {

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

/// acc += weight * V for the non-finite elements of V, for row m, whose weights are these, and the keys that it sees.
template <class Weights>
void add_non_finite(AmxItem& v, const TileRows& tile, std::int64_t tile_begin, std::int64_t m, const Weights& weights) {
  const TileKeys keys = v.view.keys(m, tile_begin, tile_begin + tile.begin, tile_begin + tile.end);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const std::uint8_t* rows[kTileKeys];
    const auto* codes = reinterpret_cast<const std::uint16_t*>(whole_rows(v, tile, /*values=*/true, j, j + 1, rows)[j]);
    for (std::int64_t d = 0; d < v.args.head_dim; ++d) {
      const std::int64_t at = v.stacked ? placed_accumulator_index(d) : accumulator_index(d);
      if (!finite_bf16(codes[d])) v.acc[m * v.dims + at] += weights.at(j) * semantics::bf16_decode(codes[d]);
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
  return {v.k_factors, v.v_factors};
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
  weigh_rows<T>(
      v, 0, v.num_rows, {tile_begin, {tile.begin, tile.end}, factors_of<T>(v, tile)}, chunks, v.scores,
      [&](std::int64_t r) { return placed_weights(v, r); }, [&] { v.prefetch.step(2); });
  KeyBlock values[kTileKeys / kBlockKeys];
  place_values(v, tile, chunks, values);
  v.prefetch.rest();
  if (v.next != nullptr) v.prefetch = RowPrefetch(v.next->k, nullptr, v.prefetch_bytes, v.prefetch_places);
  accumulate_placed_rows<T>(v.acc, v.dims, v.weights, values, chunks, [&] { v.prefetch.step(); });
  for (std::int64_t m = 0; m < v.num_rows && v.careful; ++m) add_non_finite(v, tile, tile_begin, m, placed_weights(v, m));
}

/// Rows of one tile of 16 against keys of one tile of keys, K where it lies: a decode row of a plan that is batch_invariant.
template <class T>
void absorb_few_rows(AmxItem& v, const TileRows& tile, const SeenTile& seen, bool finite) {
  constexpr std::int64_t kRowWords = kTileKeys / 2;
  const TileKeys keys{seen.of_row(v, 0).begin, seen.of_row(v, v.num_rows - 1).end};
  if (keys.empty()) return;
  const ChunkRange chunks = chunks_of(keys);
  const auto weights = [&](std::int64_t r) { return WeightRow{v.weights + r * kRowWords, kTileRows * kRowWords}; };
  score_few_rows<T>(v, tile, chunks);
  weigh_rows<T>(v, 0, v.num_rows, seen, chunks, v.scores, weights, [] {});
  accumulate_rows<T>(v.acc, v.dims, {v.weights, kRowWords, kTileRows * kRowWords, chunks}, v.v_panel, [&] { v.prefetch.step(); });
  for (std::int64_t r = 0; r < v.num_rows && !finite; ++r) add_non_finite(v, tile, seen.tile_begin, r, weights(r));
}

/// The first block from row m on that sees a key of the tile, absent if none does. Odd and even blocks take turns in scratch.
inline RowBlock next_block(const AmxItem& v, const SeenTile& tile, std::int64_t m, std::int64_t turn) {
  RowBlock block;
  for (; m < v.num_rows; m += kTileRows) {
    const std::int64_t count = v.num_rows - m < kTileRows ? v.num_rows - m : kTileRows;
    const TileKeys first = tile.of_row(v, m), last = tile.of_row(v, m + count - 1);
    const TileKeys seen{first.begin, last.end};  // begin and end of a row's keys never decrease with the row
    if (seen.empty()) continue;
    block.first_row = m, block.num_rows = count;
    block.chunks = chunks_of(seen);
    block.whole = last.begin == 0 && first.end == kTileKeys;
    block.weights = {v.scores + turn % 2 * kTileRows * kTileKeys, v.weights + turn % 2 * kTileRows * (kTileKeys / 2)};
    break;
  }
  return block;
}

/// Dot products of a plain block -> its weights, with other work mixed in. False, with nothing done, if weigh_rows is to do it.
template <PlainKind kKind, class T>
bool weigh_plain_block(AmxItem& v, const SeenTile& tile, const RowBlock& now, TileWork<T>& work, bool all_chunks) {
  PlainBlock<T> block(v, tile, now.first_row, now.num_rows, now.weights);
  if (!block.template find_maxima<kKind>(now.chunks)) return false;
  if (all_chunks && v.dims == 64) {
    weigh_amid_products<2, kKind>(block, work);
  } else if (all_chunks && v.dims == 128) {
    weigh_amid_products<4, kKind>(block, work);
  } else {
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      auto row = block.template row<kKind>(r);
      for (std::int64_t chunk = now.chunks.begin; chunk < now.chunks.end; ++chunk) {
        row.chunk(chunk);
        work.step();
      }
      block.set_sum(r, row.lanes());
    }
  }
  block.rescale();
  return true;
}

/// Dot products of a block -> its weights, with the work that lies beside it mixed in.
template <class T>
void weigh_block(AmxItem& v, const SeenTile& tile, const RowBlock& before, const RowBlock& now, const RowBlock& next) {
  TileWork<T> work(v, before, next, kTileRows * (now.chunks.end - now.chunks.begin));
  const bool all = before.all_chunks() && now.all_chunks() && next.all_chunks(), factors = tile.factors.k != nullptr;
  const bool done = PlainBlock<T>::takes(v) && (factors     ? weigh_plain_block<PlainKind{true, true}>(v, tile, now, work, all)
                                                : now.whole ? weigh_plain_block<PlainKind{false, false}>(v, tile, now, work, all)
                                                            : weigh_plain_block<PlainKind{true, false}>(v, tile, now, work, all));
  if (!done)
    weigh_rows<T>(
        v, now.first_row, now.num_rows, tile, now.chunks, now.weights.dots, [&](std::int64_t r) { return now.weights.of_row(r); },
        [&] { work.step(); });
  work.rest();
}

/// Many rows against keys of one tile, block by block: the products of neighbouring blocks are mixed into a block's softmax.
template <class T>
void absorb_row_blocks(AmxItem& v, const TileRows& tile, const SeenTile& seen, bool finite) {
  const RowBlock none;
  RowBlock before, now = next_block(v, seen, 0, 0);
  TileWork<T>(v, none, now, 1).rest();
  for (std::int64_t turn = 1; now.present(); ++turn) {
    const RowBlock next = next_block(v, seen, now.first_row + kTileRows, turn);
    weigh_block<T>(v, seen, before, now, next);
    before = now;
    now = next;
    if (finite) continue;
    TileWork<T>(v, before, none, 1).rest();
    for (std::int64_t r = 0; r < before.num_rows; ++r)
      add_non_finite(v, tile, seen.tile_begin, before.first_row + r, before.weights.of_row(r));
    before = none;
  }
  TileWork<T>(v, before, none, 1).rest();
}

/// All rows against keys [begin, end) of one tile.
template <class T>
void absorb_amx_tile(AmxItem& v, const TileRows& tile, std::int64_t tile_begin) {
  const ChunkRange all = chunks_of({tile.begin, tile.end});
  if (!v.few) pack_keys(v, tile, all);
  const bool finite = T::Faults::is_finite(pack_tile_values(v, tile, all));
  if (!finite) take_out_non_finite(v, all);
  (v.few ? absorb_few_rows<T> : absorb_row_blocks<T>)(v, tile, {tile_begin, {tile.begin, tile.end}, factors_of<T>(v, tile)},
                                                      finite);
}

/// Keys [begin, end) from scratch. Their first tile's rows are in v.tiles; afterwards those of the tile that follows are.
template <class T>
void absorb_amx_keys(AmxItem& v, std::int64_t begin, std::int64_t end, std::int64_t item_end) {
  for (std::int64_t i = 0; i < v.acc_rows * v.dims; i += 16)
    Avx512Simd::store(v.acc + i, T::Faults::at_start(Avx512Simd::load(v.acc + i)));
  for (std::int64_t m = 0; m < plan_detail::amx_padded_rows(v.num_rows); ++m) v.states[m] = T::Faults::at_start(v.states[m]);
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
  T::configure(v.stacked ? v.acc_rows : kTileRows);
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
    if (args.interrupt != nullptr && args.interrupt->ended()) return 0;
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
