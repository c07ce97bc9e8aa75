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
#include "backend/cpu/item_view.h"
#include "backend/cpu/planted.h"
#include "backend/cpu/softmax_row.h"
#include "backend/cpu/tile_path.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kMaxDirectRows = 8;  // plan.direct_rows never exceeds it
constexpr std::int64_t kDirectKeys = 4;     // keys scored together
constexpr std::int64_t kDirectValues = 16;  // values added together: between two such groups the prefetch walk goes on

/// Where the rows of one tile can be read; types that registers cannot take as they are, and rows with gaps, go through scratch.
struct Operands {
  const std::uint8_t* rows[kMaxTileKv];
  DType type = DType::f32;  ///< f32, f16 or bf16
};

/// kWidth elements as f32, by type.
template <class V, DType kType>
typename V::Reg load_elements(const std::uint8_t* row, std::int64_t d) {
  if constexpr (kType == DType::f16) return V::load_f16(reinterpret_cast<const std::uint16_t*>(row) + d);
  if constexpr (kType == DType::bf16) return V::load_bf16(reinterpret_cast<const std::uint16_t*>(row) + d);
  return V::load(reinterpret_cast<const float*>(row) + d);
}

/// Whether rows can be read in place: whole vectors side by side, of a type that a register takes.
inline bool readable_in_place(const RowSource& source, const AttendArgs& a) {
  const bool direct_type = source.dtype == DType::f32 || source.dtype == DType::f16 || source.dtype == DType::bf16;
  return direct_type && source.strides.dim == 1 && source.strides.x >= a.head_dim && a.head_dim == a.stride;
}

// ---- scores -------------------------------------------------------------------------------------------------------------------

/// Scores of kRows rows with four keys. Every sum is one chain over vectors of dims and one tree over lanes, wherever it stands.
template <class V, DType kType, int kRows>
void direct_score_block(const ItemView& v, std::int64_t m, std::int64_t j, const std::uint8_t* const* keys) {
  typename V::Reg sum[kRows][kDirectKeys];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kDirectKeys; ++c) sum[r][c] = V::set1(0.0f);
  const float* query = v.query + m * v.stride;
  const std::int64_t floats = key_floats<V>(v.args), stride = v.stride;
  const std::uint8_t* const rows[kDirectKeys] = {keys[0], keys[1], keys[2], keys[3]};
  for (std::int64_t d = 0; d < floats; d += V::kWidth) {
    if (QUIRE_PLANTED(query_tail_dims_dropped) && (d + V::kWidth) * V::kPairs >= v.args.head_dim) break;
    typename V::Reg k[kDirectKeys];
    for (int c = 0; c < kDirectKeys; ++c) k[c] = load_elements<V, kType>(rows[c], d);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg q = V::load(query + r * stride + d);
      for (int c = 0; c < kDirectKeys; ++c) sum[r][c] = V::dot(q, k[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) V::store_sums(v.scores + (m + r) * v.tile_kv + j, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}

/// All rows against four keys.
template <class V, DType kType>
void direct_score_rows(const ItemView& v, std::int64_t j, const std::uint8_t* const* keys) {
  static_assert(V::kDirectRows <= 4);
  for (std::int64_t m = 0; m < v.num_rows; m += V::kDirectRows) {
    const std::int64_t rows = v.num_rows - m < V::kDirectRows ? v.num_rows - m : V::kDirectRows;
    if (rows == 1) direct_score_block<V, kType, 1>(v, m, j, keys);
    if (rows == 2) direct_score_block<V, kType, 2>(v, m, j, keys);
    if constexpr (V::kDirectRows > 2) {
      if (rows == 3) direct_score_block<V, kType, 3>(v, m, j, keys);
      if (rows == 4) direct_score_block<V, kType, 4>(v, m, j, keys);
    }
  }
}

/// All rows against all keys of the tile, in fours counted from the tile's beginning. Scores beside them are meaningless.
template <class V>
void direct_scores(const ItemView& v, const TileRows& rows, const RowSource& source, PrefetchWalk& ahead) {
  const bool pairs = V::kPairs == 2 && source.dtype == DType::bf16 && v.args.head_dim == 2 * key_floats<V>(v.args);
  const bool in_place = readable_in_place(source, v.args) && (V::kPairs == 1 || pairs);
  const DType type = in_place && !pairs ? source.dtype : DType::f32;  // pairs are loaded like floats
  const auto* base = static_cast<const std::uint8_t*>(source.data);
  const std::int64_t size = itemsize(source.dtype);
  for (std::int64_t j = rows.begin / kDirectKeys * kDirectKeys; j < rows.end; j += kDirectKeys) {
    std::int64_t offsets[kDirectKeys];
    const std::uint8_t* keys[kDirectKeys];
    for (std::int64_t c = 0; c < kDirectKeys; ++c) {
      offsets[c] = rows.k[j + c < rows.begin ? rows.begin : j + c < rows.end ? j + c : rows.end - 1];
      keys[c] = in_place ? base + offsets[c] * size : reinterpret_cast<const std::uint8_t*>(v.staging + c * v.stride);
    }
    if (!in_place) load_keys<V>(v.staging, /*temp=*/v.v_panel, source, offsets, kDirectKeys, v.args);
    ahead.advance(kDirectKeys);
    if constexpr (V::kPairs == 1) {
      if (type == DType::bf16) direct_score_rows<V, DType::bf16>(v, j, keys);
      if (type == DType::f16) direct_score_rows<V, DType::f16>(v, j, keys);
    }
    if (type == DType::f32) direct_score_rows<V, DType::f32>(v, j, keys);
  }
}

// ---- values -------------------------------------------------------------------------------------------------------------------

/// kRows rows x kCols vectors of dims: acc = acc * correction + P V over `keys`, whose rows are at `values`.
template <class V, DType kType, int kRows, int kCols>
void direct_value_block(float* acc, std::int64_t stride, const float* probs, std::int64_t tile_kv,
                        const std::uint8_t* const* values, std::int64_t d, TileKeys keys, const float* corrections) {
  typename V::Reg sum[kRows][kCols];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) sum[r][c] = V::mul(V::load(acc + r * stride + d + c * V::kWidth), V::set1(corrections[r]));
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    typename V::Reg x[kCols];
    for (int c = 0; c < kCols; ++c) x[c] = load_elements<V, kType>(values[j], d + c * V::kWidth);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg p = V::set1(probs[r * tile_kv + j]);
      for (int c = 0; c < kCols; ++c) sum[r][c] = V::fma(p, x[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) V::store(acc + r * stride + d + c * V::kWidth, sum[r][c]);
}

using DirectValueBlock = void (*)(float*, std::int64_t, const float*, std::int64_t, const std::uint8_t* const*, std::int64_t,
                                  TileKeys, const float*);

constexpr int kDirectValueRows = 4;

template <class V, DType kType, int kCols>
DirectValueBlock direct_value_block_of(std::int64_t rows) {
  constexpr DirectValueBlock kBlocks[] = {direct_value_block<V, kType, 1, kCols>, direct_value_block<V, kType, 2, kCols>,
                                          direct_value_block<V, kType, 3, kCols>, direct_value_block<V, kType, 4, kCols>};
  return kBlocks[rows - 1];
}

/// Rows [m, m + count) gain the values of `keys`, all of which each of them sees.
template <class V, DType kType>
void direct_value_rows(const ItemView& v, std::int64_t m, std::int64_t count, const Operands& values, TileKeys keys,
                       const float* corrections) {
  const std::int64_t vectors = v.stride / V::kWidth;
  for (std::int64_t c = 0; c < vectors;) {
    const int wide = block_vectors<V>(vectors - c);
    const DirectValueBlock block = wide == V::kCols ? direct_value_block_of<V, kType, V::kCols>(count)
                                   : wide == 2      ? direct_value_block_of<V, kType, 2>(count)
                                                    : direct_value_block_of<V, kType, 1>(count);
    block(v.acc + m * v.stride, v.stride, v.scores + m * v.tile_kv, v.tile_kv, values.rows, c * V::kWidth, keys, corrections);
    c += wide;
  }
}

/// The same by type. A row's correction is applied with its first keys.
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
  const bool in_place = readable_in_place(source, v.args);
  Operands values;
  values.type = in_place ? source.dtype : DType::f32;
  const auto* base = in_place ? static_cast<const std::uint8_t*>(source.data) : reinterpret_cast<const std::uint8_t*>(v.v_panel);
  const std::int64_t size = in_place ? itemsize(source.dtype) : v.stride * static_cast<std::int64_t>(sizeof(float));
  // Converted rows take turns in as much scratch as one group needs, which stays in L1.
  for (std::int64_t j = rows.begin; j < rows.end; ++j)
    values.rows[j] = base + (in_place ? rows.v[j] : (j - rows.begin) % kDirectValues) * size;
  const std::int64_t blocks = (v.num_rows + kDirectValueRows - 1) / kDirectValueRows;
  const std::int64_t block = (v.num_rows + blocks - 1) / blocks;
  for (std::int64_t first = rows.begin; first < rows.end; first += kDirectValues) {
    const std::int64_t last = first + kDirectValues < rows.end ? first + kDirectValues : rows.end;
    if (!in_place) load_rows<V>(v.v_panel, source, rows.v + first, last - first, v.args);
    ahead.advance(last - first);
    for (std::int64_t m = 0; m < v.num_rows; m += block)
      direct_accumulate_rows<V>(v, m, v.num_rows - m < block ? v.num_rows - m : block, values, {first, last}, keys, corrections);
  }
}

// ---- one tile, one segment
// ------------------------------------------------------------------------------------------------------

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
