// Stage: attend. Where the K and V rows of one tile of keys lie, as addresses, and bringing them towards the core in time.
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/planted.h"

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

/// Addresses of positions [begin, end) of a request, all of one tile. Reads only the table entries of their pages.
inline void find_tile_rows(TileRows& rows, const AttendArgs& a, std::int64_t req, std::int64_t kv_head, std::int64_t begin,
                           std::int64_t end) {
  const std::int64_t tile_begin = begin / kTileKeys * kTileKeys;
  const std::int64_t cached_len = a.reqs[req].cached_len;
  const std::int64_t cached_end = end < cached_len ? end : (begin > cached_len ? begin : cached_len);
  rows.begin = begin - tile_begin;
  rows.end = end - tile_begin;
  rows.fresh = cached_end - tile_begin;
  for (std::int64_t j = 0; j < kTileKeys; ++j) rows.k[j] = rows.v[j] = nullptr;

  const auto* k_data = static_cast<const std::uint8_t*>(a.cache_k.data);
  const auto* v_data = static_cast<const std::uint8_t*>(a.cache_v.data);
  const std::int64_t size = itemsize(a.cache_k.dtype);
  const std::int64_t k_step = a.cache_k.strides.token * size;
  const std::int64_t v_step = a.cache_v.strides.token * size;
  const semantics::IndexView pages = semantics::index_row(a.block_table, QUIRE_PLANTED(table_row_of_first_request) ? 0 : req);
  semantics::for_each_page_run(pages, a.page_size, begin, cached_end,
                               [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                 if (QUIRE_PLANTED(pages_shifted_by_one) && position >= a.page_size)
                                   page = pages[position / a.page_size - 1];
                                 const std::uint8_t* k = k_data + a.cache_k.strides.row(page, kv_head, offset) * size;
                                 const std::uint8_t* v = v_data + a.cache_v.strides.row(page, kv_head, offset) * size;
                                 for (std::int64_t j = position - tile_begin; count > 0; --count, ++j, k += k_step, v += v_step) {
                                   rows.k[j] = k;
                                   rows.v[j] = v;
                                 }
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

/// Asks for the lines of a tile's rows, a few at a time, towards L2. Eight stretches of sixteen keys advance side by side: pages
/// lie scattered, and a page read alone ends before the memory system has found its pace. Every second line is enough where
/// rows are long: the L2 prefetcher completes pairs of lines (Intel 64 Optimization Reference Manual, 2.1.5.4, spatial
/// prefetcher).
struct RowPrefetch {
  static constexpr std::int64_t kStretch = 16;
  static constexpr std::int64_t kPair = 128;
  const TileRows* rows = nullptr;  ///< null: nothing to ask for
  std::int64_t row_bytes = 0;
  std::int64_t token = 0, line = 0;
  bool values = false;

  /// The next `count` requests of every stretch.
  void step(std::int64_t count) {
    if (rows == nullptr) return;
    for (; count > 0 && token < kStretch; --count) {
      const std::uint8_t* const* row = (values ? rows->v : rows->k) + token;
      for (std::int64_t j = 0; j < kTileKeys; j += kStretch)
        __builtin_prefetch(row[j] + line, 0, 2);  // a null row: a request for nothing, which is dropped
      advance();
    }
  }
  /// Steps that a whole tile takes.
  std::int64_t all_steps() const { return 2 * kStretch * ((row_bytes + kPair - 1) / kPair); }

 private:
  void advance() {
    line += kPair;
    if (line < row_bytes) return;
    line = 0;
    if (values) ++token;
    values = !values;
  }
};

}  // namespace
}  // namespace quire::cpu
