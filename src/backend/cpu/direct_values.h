// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Few score rows gain the values of a tile, which are read where they lie: acc = acc * correction + P V.
//
// Every element of an accumulator is one chain over the keys that its row sees, in order: the chain of the tile path, which adds
// zeros for other keys. Each value is read once for up to four rows.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/attend_tile.h"
#include "backend/cpu/direct_rows.h"
#include "backend/cpu/elements.h"
#include "backend/cpu/item_view.h"
#include "backend/cpu/packed_rows.h"
#include "backend/cpu/panels.h"
#include "backend/cpu/register_block.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kMaxDirectRows = 8;             // plan.direct_rows never exceeds it
constexpr std::int64_t kDirectValues = kTurnedTokens;  // values added together: between two such groups the prefetch walk goes on
// Likewise of rows whose dims lie side by side: an accumulator is loaded and stored once for so many. 16 cost a decode row of
// three heads of 64 dims a tenth of its time. Longer groups prefetch as many bytes at once: beyond 8 KiB, a decode row of 128
// bf16 dims on pages of 16 takes a quarter longer.
constexpr std::int64_t kMostDirectValues = 64, kDirectValueBytes = 8192;

inline std::int64_t values_together(const RowSource& source) {
  const std::int64_t rows = kDirectValueBytes / (source.dims * itemsize(source.dtype));
  return rows < kDirectValues ? kDirectValues : rows > kMostDirectValues ? kMostDirectValues : rows;
}

/// Where the rows of one tile can be read; types that registers cannot take as they are, and rows with gaps, go through scratch.
struct Operands {
  const std::uint8_t* rows[kMaxTileKv];
  DType type = DType::f32;  ///< f32, f16 or bf16
};

/// kRows rows x kCols vectors of dims: acc = acc * correction + P V over `keys`, whose rows are at `values`.
template <class V, DType kType, int kRows, int kCols>
void direct_value_block(float* acc, std::int64_t stride, const float* probs, std::int64_t tile_kv,
                        const std::uint8_t* const* values, std::int64_t d, TileKeys keys, const float* corrections) {
  auto sums = RegisterBlock<V, kRows, kCols>::scaled(acc + d, stride, corrections);
  for (std::int64_t j = keys.begin; j < keys.end; ++j)
    sums.add(probs + j, tile_kv, RegisterRow<V, kCols>::template of<kType>(values[j], d));
  sums.store(acc + d, stride);
}

using DirectValueBlock = void (*)(float*, std::int64_t, const float*, std::int64_t, const std::uint8_t* const*, std::int64_t,
                                  TileKeys, const float*);

constexpr int kDirectValueRows = 4;

template <class V, DType kType, int kCols>
DirectValueBlock direct_value_block_of(std::int64_t rows) {
  constexpr DirectValueBlock blocks[] = {direct_value_block<V, kType, 1, kCols>, direct_value_block<V, kType, 2, kCols>,
                                         direct_value_block<V, kType, 3, kCols>, direct_value_block<V, kType, 4, kCols>};
  return blocks[rows - 1];
}

/// Rows [m, m + count) gain the values of `keys`, all of which each of them sees.
template <class V, DType kType>
void direct_value_rows(const ItemView& v, std::int64_t m, std::int64_t count, const Operands& values, TileKeys keys,
                       const float* corrections) {
  const std::int64_t vectors = v.v_stride / V::kWidth;
  for (std::int64_t c = 0; c < vectors;) {
    const int wide = block_vectors<V>(vectors - c);
    const DirectValueBlock block = wide == V::kCols ? direct_value_block_of<V, kType, V::kCols>(count)
                                   : wide == 2      ? direct_value_block_of<V, kType, 2>(count)
                                                    : direct_value_block_of<V, kType, 1>(count);
    block(v.acc + m * v.v_stride, v.v_stride, v.scores + m * v.tile_kv, v.tile_kv, values.rows, c * V::kWidth, keys, corrections);
    c += wide;
  }
}

/// Adds weighted values to the accumulators, by the type of the cache. A row's correction is applied with its first keys.
template <class V>
void direct_accumulate(const ItemView& v, std::int64_t m, std::int64_t count, const Operands& values, TileKeys keys,
                       float* corrections) {
  if (keys.empty()) return;
  if (values.type == DType::f32) direct_value_rows<V, DType::f32>(v, m, count, values, keys, corrections + m);
  if (values.type == DType::f16) direct_value_rows<V, DType::f16>(v, m, count, values, keys, corrections + m);
  if (values.type == DType::bf16) direct_value_rows<V, DType::bf16>(v, m, count, values, keys, corrections + m);
  for (std::int64_t r = 0; r < count; ++r) corrections[m + r] = 1.0f;
}

/// Rows [m, m + count) with their own keys among `group`: those that all of them see together, the others row by row. A key that
/// a row does not see is never multiplied: 0 * NaN would be NaN.
template <class V>
void direct_accumulate_rows(const ItemView& v, std::int64_t m, std::int64_t count, const Operands& values, TileKeys group,
                            const TileKeys* keys, float* corrections) {
  const auto seen = [&](std::int64_t row) {
    return TileKeys{keys[row].begin > group.begin ? keys[row].begin : group.begin,
                    keys[row].end < group.end ? keys[row].end : group.end};
  };
  TileKeys common = seen(m);
  for (std::int64_t r = m + 1; r < m + count; ++r) {
    if (seen(r).begin > common.begin) common.begin = seen(r).begin;
    if (seen(r).end < common.end) common.end = seen(r).end;
  }
  if (common.empty()) {
    for (std::int64_t r = m; r < m + count; ++r) direct_accumulate<V>(v, r, 1, values, seen(r), corrections);
    return;
  }
  const auto edges = [&](std::int64_t r, bool before) {
    return before ? TileKeys{seen(r).begin, common.begin} : TileKeys{common.end, seen(r).end};
  };
  for (std::int64_t r = m; r < m + count; ++r) direct_accumulate<V>(v, r, 1, values, edges(r, /*before=*/true), corrections);
  direct_accumulate<V>(v, m, count, values, common, corrections);
  for (std::int64_t r = m; r < m + count; ++r) direct_accumulate<V>(v, r, 1, values, edges(r, /*before=*/false), corrections);
}

/// acc = acc * correction + P V for all rows, a group of keys at a time.
template <class V>
void direct_values(const ItemView& v, const TileRows& rows, const RowSource& source, const TileKeys* keys, float* corrections,
                   PrefetchWalk& ahead) {
  const bool in_place = readable_in_place(source), turned = are_turned_words<V>(source);
  const bool turned_codes = are_turned_codes<V>(source);
  auto* const codes = reinterpret_cast<std::uint8_t*>(v.k_panel);  // k_panel is free: the direct path packs no keys
  const RowSource read = turned_codes ? joined_rows(source, codes) : source;
  const JoinedOffsets joined(source);
  const Fp8Widener<V> widen(read);
  const bool whole_rows = in_place || (widen.takes() && !turned_codes);
  const std::int64_t group = whole_rows ? values_together(source) : kDirectValues;
  Operands values;
  values.type = widen.takes() ? DType::bf16 : in_place || turned ? source.dtype : DType::f32;
  const auto* base = in_place ? static_cast<const std::uint8_t*>(source.data) : reinterpret_cast<const std::uint8_t*>(v.v_panel);
  const std::int64_t size = in_place ? itemsize(source.dtype) : v.v_stride * itemsize(values.type);
  const std::int64_t blocks = (v.num_rows + kDirectValueRows - 1) / kDirectValueRows;
  const std::int64_t block = (v.num_rows + blocks - 1) / blocks;
  // Groups end where pages do, which hold a multiple of a group or are a part of one. Converted rows of one group take the place
  // of those before, so that they stay in L1.
  for (std::int64_t first = rows.begin, last = 0; first < rows.end; first = last) {
    last = (first / group + 1) * group;
    if (last > rows.end) last = rows.end;
    if (in_place)
      for (std::int64_t j = first; j < last; ++j) values.rows[j] = base + rows.v[j] * size;
    else
      for (std::int64_t j = first; j < last; ++j) values.rows[j] = base + (j - first) * size;
    auto* const words = reinterpret_cast<std::uint16_t*>(v.v_panel);
    if (turned) turn_words<V>(words, source, rows.v + first, last - first);
    if (turned_codes) turn_codes<V>(codes, source, rows.v + first, last - first);
    const std::int64_t* const offsets = turned_codes ? joined.at : rows.v + first;
    if (widen.takes())
      widen(offsets, last - first, words, size, size);
    else if (!in_place && !turned)
      load_rows<V>(v.v_panel, read, offsets, last - first);
    ahead.advance(last - first);
    for (std::int64_t m = 0; m < v.num_rows; m += block)
      direct_accumulate_rows<V>(v, m, v.num_rows - m < block ? v.num_rows - m : block, values, {first, last}, keys, corrections);
  }
}

}  // namespace
}  // namespace quire::cpu
