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

/// Asks for the lines of a tile's rows, four at a time, towards L2. Eight stretches of sixteen keys advance side by side: pages
/// lie scattered, and a page read alone ends before the memory system has found its pace. A core tracks sixteen misses; more
/// requests at once block what comes after them, so callers spread them over all of a tile's work.
class RowPrefetch {
 public:
  RowPrefetch() = default;
  /// Requests for `rows` (null: none) at `places` calls of step().
  RowPrefetch(const TileRows* rows, std::int64_t row_bytes, std::int64_t places)
      : rows_(row_bytes > 0 ? rows : nullptr), row_bytes_(row_bytes), places_(places) {
    calls_ = 2 * kTileKeys / kBatch * ((row_bytes + kLine - 1) / kLine);
  }
  /// The share of one place.
  void step() {
    for (credit_ += calls_; credit_ >= places_ && rows_ != nullptr; credit_ -= places_) request();
  }
  /// Whatever is left.
  void rest() {
    while (rows_ != nullptr) request();
  }

 private:
  static constexpr std::int64_t kStretch = 16;
  static constexpr std::int64_t kBatch = 4;
  static constexpr std::int64_t kLine = 64;

  void request() {
    const std::uint8_t* const* row = (values_ ? rows_->v : rows_->k) + token_ + stretch_ * kStretch;
    // A null row: a request for nothing, which is dropped.
    for (std::int64_t i = 0; i < kBatch; ++i) {
      const auto address = reinterpret_cast<std::uintptr_t>(row[i * kStretch]) + static_cast<std::uintptr_t>(line_);
      __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 2);
    }
    stretch_ = (stretch_ + kBatch) % (kTileKeys / kStretch);
    if (stretch_ != 0 || (line_ += kLine) < row_bytes_) return;
    line_ = 0;
    if (values_ && ++token_ == kStretch) rows_ = nullptr;
    values_ = !values_;
  }

  const TileRows* rows_ = nullptr;
  std::int64_t row_bytes_ = 0, places_ = 1, calls_ = 0, credit_ = 0;
  std::int64_t token_ = 0, line_ = 0, stretch_ = 0;
  bool values_ = false;
};

}  // namespace
}  // namespace quire::cpu
