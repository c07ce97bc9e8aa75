// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Where the K and V rows of one tile of keys lie, as addresses, and bringing them towards the core in time.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/attend_args.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kTileKeys = 128;  // plan.tile_kv of cpu_amx

/// Keys [begin, end) of a tile, counted from the tile's first; those from `fresh` on come from this step's `key` and `value`.
/// Other entries of k and v are null.
struct TileRows {
  const std::uint8_t* k[kTileKeys];
  const std::uint8_t* v[kTileKeys];
  std::int64_t begin = 0, end = 0, fresh = 0;
};

/// to[i] = first + i * step for i < count.
inline void spaced_rows(const std::uint8_t* first, std::int64_t step, std::int64_t count, const std::uint8_t** to) {
  const __m512i steps = _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(step));
  __m512i at = _mm512_add_epi64(_mm512_set1_epi64(reinterpret_cast<std::int64_t>(first)), steps);
  for (; count > 0; count -= 8, to += 8) {
    _mm512_mask_storeu_epi64(static_cast<void*>(to), static_cast<__mmask8>(count >= 8 ? 0xFF : (1 << count) - 1), at);
    at = _mm512_add_epi64(at, _mm512_set1_epi64(8 * step));
  }
}

/// Addresses of positions [begin, end) of a request, all of one tile. Reads only the table entries of their pages.
inline void find_tile_rows(TileRows& rows, const AttendArgs& a, std::int64_t req, std::int64_t kv_head, std::int64_t begin,
                           std::int64_t end) {
  const std::int64_t tile_begin = begin / kTileKeys * kTileKeys;
  const std::int64_t cached_len = a.reqs[req].cached_len;
  const std::int64_t cached_end = end < cached_len ? end : (begin > cached_len ? begin : cached_len);
  rows.begin = begin - tile_begin;
  rows.end = end - tile_begin;
  rows.fresh = cached_end - tile_begin;
  if (end - begin < kTileKeys)
    for (std::int64_t j = 0; j < kTileKeys; ++j) rows.k[j] = rows.v[j] = nullptr;

  const auto* k_data = static_cast<const std::uint8_t*>(a.cache_k.data);
  const auto* v_data = static_cast<const std::uint8_t*>(a.cache_v.data);
  const std::int64_t size = itemsize(a.cache_k.dtype);
  const std::int64_t k_step = a.cache_k.strides.token * size;
  const std::int64_t v_step = a.cache_v.strides.token * size;
  const semantics::PageRow pages = pages_of(a, req);
  semantics::for_each_page_run(pages, a.page_size, begin, cached_end,
                               [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                 const std::uint8_t* k = k_data + a.cache_k.strides.row(page, kv_head, offset) * size;
                                 const std::uint8_t* v = v_data + a.cache_v.strides.row(page, kv_head, offset) * size;
                                 spaced_rows(k, k_step, count, rows.k + position - tile_begin);
                                 spaced_rows(v, v_step, count, rows.v + position - tile_begin);
                               });

  const std::int64_t first_token = a.query_start_loc[req] - a.reqs[req].context_len;
  const std::int64_t fresh_size = itemsize(a.key.dtype);
  for (std::int64_t p = cached_end; p < end; ++p) {
    rows.k[p - tile_begin] =
        static_cast<const std::uint8_t*>(a.key.data) + a.key.strides.row(0, kv_head, first_token + p) * fresh_size;
    rows.v[p - tile_begin] =
        static_cast<const std::uint8_t*>(a.value.data) + a.value.strides.row(0, kv_head, first_token + p) * fresh_size;
  }
}

/// Whether each of 16 rows begins `stride` bytes after the one before.
inline bool evenly_spaced(const std::uint8_t* const* rows, std::int64_t stride) {
  const __m512i steps = _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(stride));
  const __m512i first = _mm512_add_epi64(_mm512_set1_epi64(reinterpret_cast<std::int64_t>(rows[0])), steps);
  const __m512i ninth = _mm512_add_epi64(first, _mm512_set1_epi64(8 * stride));
  return (_mm512_cmpneq_epi64_mask(first, _mm512_loadu_si512(static_cast<const void*>(rows))) |
          _mm512_cmpneq_epi64_mask(ninth, _mm512_loadu_si512(static_cast<const void*>(rows + 8)))) == 0;
}

/// Asks for the lines of a tile's K or V rows, or of both. Eight stretches of sixteen keys advance side by side: pages lie
/// scattered, and a page read alone ends before the memory system has found its pace. A core tracks sixteen misses; more
/// requests at once block what comes after them, so callers spread them over their work. To L1: requests for L2 only are
/// dropped now and then, and each dropped one is a wait for memory later.
class RowPrefetch {
 public:
  RowPrefetch() = default;
  /// Requests for `rows` and then for `more` (null: none), [kTileKeys] each, at `places` calls of step().
  RowPrefetch(const std::uint8_t* const* rows, const std::uint8_t* const* more, std::int64_t row_bytes, std::int64_t places)
      : rows_(row_bytes > 0 ? rows : nullptr), more_(more), row_bytes_(row_bytes), places_(places) {
    calls_ = (more != nullptr ? 2 : 1) * kStretch * ((row_bytes + kStep - 1) / kStep);
  }
  /// The share of `places` places.
  void step(std::int64_t places = 1) {
    for (credit_ += places * calls_; credit_ >= places_ && rows_ != nullptr; credit_ -= places_) request();
  }
  /// Whatever is left.
  void rest() {
    while (rows_ != nullptr) request();
  }

 private:
  static constexpr std::int64_t kStretch = 16;
  static constexpr std::int64_t kStep = 128;  ///< two cache lines

  /// One or two lines of eight rows. A null row: a request for nothing, which is dropped.
  void request() {
    const std::uint8_t* const* rows = rows_ + token_;
    if (row_bytes_ - line_ > kStep / 2) {
      for (std::int64_t i = 0; i < kTileKeys; i += kStretch)
        __asm__ volatile("prefetcht0 (%0,%1)\n\tprefetcht0 64(%0,%1)" : : "r"(rows[i]), "r"(line_));
    } else {
      for (std::int64_t i = 0; i < kTileKeys; i += kStretch) __asm__ volatile("prefetcht0 (%0,%1)" : : "r"(rows[i]), "r"(line_));
    }
    line_ += kStep;
    if (line_ < row_bytes_) return;
    line_ = 0;
    if (++token_ < kStretch) return;
    token_ = 0;
    rows_ = more_;
    more_ = nullptr;
  }

  const std::uint8_t* const* rows_ = nullptr;
  const std::uint8_t* const* more_ = nullptr;
  std::int64_t row_bytes_ = 0, places_ = 1, calls_ = 0, credit_ = 0;
  std::int64_t token_ = 0, line_ = 0;
};

}  // namespace
}  // namespace quire::cpu
