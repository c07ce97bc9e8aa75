// Few query rows, many keys: K and V go straight from the cache into registers, each read once, and what comes next is
// prefetched.
//
// Converting a tile into scratch pays when many rows share it; a decode row would write and read every byte of the cache once
// more. Here lanes are dims: a score is kWidth partial sums over its dims, added up by one tree, for kDirectRows rows and
// kDirectKeys keys at a time; a value vector is converted once for kRows rows. Softmax, masks and merging are those of
// attend_body.h.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/item_view.h"
#include "backend/cpu/planted.h"

namespace quire::cpu {
namespace {

/// Where the K and V rows of a tile's keys lie, as addresses. Only the visible ones are set.
struct TileRows {
  const std::uint8_t* k[kMaxTileKv];
  const std::uint8_t* v[kMaxTileKv];
  std::int64_t begin = 0, end = 0;  ///< keys, relative to the tile
  bool fresh = false;               ///< from this step's rows: other dtype, no scales
};

/// Fills `rows` for positions [begin, end) of a request; all of them are cached or all are new.
inline void find_rows(TileRows& rows, const AttendArgs& a, std::int64_t req, std::int64_t kv_head, std::int64_t begin,
                      std::int64_t end) {
  const std::int64_t tile_begin = begin / a.tile_kv * a.tile_kv;
  rows.begin = begin - tile_begin;
  rows.end = end - tile_begin;
  rows.fresh = begin >= a.reqs[req].cached_len;
  const RowSource& k = rows.fresh ? a.key : a.cache_k;
  const RowSource& v = rows.fresh ? a.value : a.cache_v;
  const auto* k_data = static_cast<const std::uint8_t*>(k.data);
  const auto* v_data = static_cast<const std::uint8_t*>(v.data);
  const std::int64_t size = itemsize(k.dtype);
  if (rows.fresh) {
    const std::int64_t first_token = a.query_start_loc[req] - a.reqs[req].context_len;
    for (std::int64_t p = begin; p < end; ++p) {
      rows.k[p - tile_begin] = k_data + k.strides.row(0, kv_head, first_token + p) * size;
      rows.v[p - tile_begin] = v_data + v.strides.row(0, kv_head, first_token + p) * size;
    }
    return;
  }
  const semantics::IndexView pages = semantics::index_row(a.block_table, QUIRE_PLANTED(table_row_of_first_request) ? 0 : req);
  semantics::for_each_page_run(pages, a.page_size, begin, end,
                               [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                 if (QUIRE_PLANTED(pages_shifted_by_one) && position >= a.page_size)
                                   page = pages[position / a.page_size - 1];
                                 for (std::int64_t i = 0; i < count; ++i) {
                                   const std::int64_t j = position + i - tile_begin;
                                   rows.k[j] = k_data + k.strides.row(page, kv_head, offset + i) * size;
                                   rows.v[j] = v_data + v.strides.row(page, kv_head, offset + i) * size;
                                 }
                               });
}

/// The whole lines of one row, towards L2: it is used one tile later.
inline void prefetch_row(const std::uint8_t* row, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}

/// kWidth consecutive elements as f32, by type.
template <class V, DType kType>
typename V::Reg load_elements(const std::uint8_t* row, std::int64_t d, const float* table) {
  if constexpr (kType == DType::f32) return V::load(reinterpret_cast<const float*>(row) + d);
  if constexpr (kType == DType::f16) return V::load_f16(reinterpret_cast<const std::uint16_t*>(row) + d);
  if constexpr (kType == DType::bf16) return V::load_bf16(reinterpret_cast<const std::uint16_t*>(row) + d);
  return V::load_fp8(row + d, table);
}

/// What a row of the direct path is made of.
struct DirectTile {
  const float* query;  ///< [num_rows][stride]
  std::int64_t num_rows, stride, head_dim, tile_kv;
  const TileRows* rows;
  const TileRows* next;  ///< prefetched meanwhile; null at the end
  std::int64_t row_bytes;
  const float* table;  ///< of fp8
  float v_scale;
};

/// Scores of kRows rows with keys [j, j + kKeys).
template <class V, DType kType, int kRows, int kKeys>
void direct_score_block(const DirectTile& t, std::int64_t m, std::int64_t j, float* scores) {
  typename V::Reg sum[kRows * kKeys];
  for (int i = 0; i < kRows * kKeys; ++i) sum[i] = V::set1(0.0f);
  const float* query = t.query + m * t.stride;
  for (std::int64_t d = 0; d < t.head_dim; d += V::kWidth) {
    if (QUIRE_PLANTED(query_tail_dims_dropped) && d + V::kWidth >= t.head_dim) break;
    typename V::Reg k[kKeys];
    for (int c = 0; c < kKeys; ++c) k[c] = load_elements<V, kType>(t.rows->k[j + c], d, t.table);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg q = V::load(query + r * t.stride + d);
      for (int c = 0; c < kKeys; ++c) sum[r * kKeys + c] = V::fma(q, k[c], sum[r * kKeys + c]);
    }
  }
  // The same tree for one key as for four: a score does not depend on its neighbours.
  for (int r = 0; r < kRows; ++r) {
    float* to = scores + (m + r) * t.tile_kv + j;
    if constexpr (kKeys == 4) {
      V::store_sums(to, sum[4 * r], sum[4 * r + 1], sum[4 * r + 2], sum[4 * r + 3]);
    } else {
      float four[4];
      V::store_sums(four, sum[r], V::set1(0.0f), V::set1(0.0f), V::set1(0.0f));
      *to = four[0];
    }
  }
}

template <class V, DType kType, int kKeys>
void direct_score_keys(const DirectTile& t, std::int64_t j, float* scores) {
  std::int64_t m = 0;
  for (; m + V::kRows <= t.num_rows; m += V::kRows) direct_score_block<V, kType, V::kRows, kKeys>(t, m, j, scores);
  for (; m < t.num_rows; ++m) direct_score_block<V, kType, 1, kKeys>(t, m, j, scores);
}

/// All rows against all keys of the tile.
template <class V, DType kType>
void direct_score_tile(const DirectTile& t, float* scores) {
  constexpr int kKeys = 4;
  const auto prefetch = [&](std::int64_t j) {
    if (t.next != nullptr && j >= t.next->begin && j < t.next->end) prefetch_row(t.next->k[j], t.row_bytes);
  };
  std::int64_t j = t.rows->begin;
  for (; j + kKeys <= t.rows->end; j += kKeys) {
    for (int c = 0; c < kKeys; ++c) prefetch(j + c);
    direct_score_keys<V, kType, kKeys>(t, j, scores);
  }
  for (; j < t.rows->end; ++j) {
    prefetch(j);
    direct_score_keys<V, kType, 1>(t, j, scores);
  }
}

/// acc = acc * correction + sum_j p_j V_j for kRows rows and kCols vectors of dims from d on.
template <class V, DType kType, int kRows, int kCols>
void direct_accumulate_block(const DirectTile& t, std::int64_t d, float* acc, const float* probs, std::int64_t begin,
                             std::int64_t end, const float* corrections, bool prefetch) {
  typename V::Reg sum[kRows][kCols];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) sum[r][c] = V::mul(V::load(acc + r * t.stride + d + c * V::kWidth), V::set1(corrections[r]));
  for (std::int64_t j = begin; j < end; ++j) {
    if (prefetch && t.next != nullptr && j >= t.next->begin && j < t.next->end) prefetch_row(t.next->v[j], t.row_bytes);
    typename V::Reg x[kCols];
    for (int c = 0; c < kCols; ++c) x[c] = load_elements<V, kType>(t.rows->v[j], d + c * V::kWidth, t.table);
    for (int r = 0; r < kRows; ++r) {
      const typename V::Reg p = V::set1(probs[r * t.tile_kv + j] * t.v_scale);
      for (int c = 0; c < kCols; ++c) sum[r][c] = V::fma(p, x[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; ++c) V::store(acc + r * t.stride + d + c * V::kWidth, sum[r][c]);
}

template <class V, DType kType, int kRows>
void direct_accumulate_rows(const DirectTile& t, float* acc, const float* probs, std::int64_t begin, std::int64_t end,
                            const float* corrections, bool prefetch) {
  constexpr int kStep = V::kCols * V::kWidth;
  std::int64_t d = 0;
  for (; d + kStep <= t.head_dim; d += kStep)
    direct_accumulate_block<V, kType, kRows, V::kCols>(t, d, acc, probs, begin, end, corrections, prefetch && d == 0);
  for (; d < t.head_dim; d += V::kWidth)
    direct_accumulate_block<V, kType, kRows, 1>(t, d, acc, probs, begin, end, corrections, prefetch && d == 0);
}

/// The functions for one element type.
struct DirectFunctions {
  void (*score)(const DirectTile&, float*);
  void (*accumulate_many)(const DirectTile&, float*, const float*, std::int64_t, std::int64_t, const float*, bool);
  void (*accumulate_one)(const DirectTile&, float*, const float*, std::int64_t, std::int64_t, const float*, bool);
};

template <class V, DType kType>
constexpr DirectFunctions kDirect = {direct_score_tile<V, kType>, direct_accumulate_rows<V, kType, V::kRows>,
                                     direct_accumulate_rows<V, kType, 1>};

template <class V>
DirectFunctions direct_functions(DType dtype) {
  switch (dtype) {
    case DType::f32: return kDirect<V, DType::f32>;
    case DType::f16: return kDirect<V, DType::f16>;
    case DType::bf16: return kDirect<V, DType::bf16>;
    default: return kDirect<V, DType::fp8_e4m3fn>;  // any fp8: the table knows which
  }
}

}  // namespace
}  // namespace quire::cpu
