// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Where the rows of a tile's keys lie in the cache, and bringing the next tile's towards L2 meanwhile.
//
// Pages are scattered, so hardware prefetchers see nothing. Reading eight pages side by side, line by line, keeps more DRAM banks
// and translations busy than page after page: 3.3 times the bandwidth from the same scattered 4 KiB pages (docs/kernels/cpu.md).
#pragma once

#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/block_rows.h"
#include "backend/cpu/item_view.h"

namespace quire::cpu {
namespace {

/// Rows of one tile: keys [begin, end), relative to the tile. All of them are cached, or all are this step's.
struct TileRows {
  std::int64_t k[kMaxTileKv];  ///< offset of the row in its RowSource, in elements
  std::int64_t v[kMaxTileKv];
  std::int64_t begin = 0, end = 0;
  bool fresh = false;  ///< rows are this step's: another dtype, no scales
  // Rows that follow each other at a fixed distance, for prefetching: one run for each page.
  std::int64_t run_begin[kMaxTileKv];  ///< first key of each run
  std::int64_t run_count[kMaxTileKv];
  std::int64_t num_runs = 0, longest_run = 0;
};

/// Fills `rows` for positions [begin, end) of a request; all of them are cached or all are new.
inline void find_rows(TileRows& rows, const AttendArgs& a, std::int64_t req, std::int64_t kv_head, std::int64_t begin,
                      std::int64_t end) {
  const std::int64_t tile_begin = begin / a.tile_kv * a.tile_kv;
  rows.begin = begin - tile_begin;
  rows.end = end - tile_begin;
  rows.fresh = begin >= a.reqs[req].cached_len;
  rows.num_runs = rows.longest_run = 0;
  const semantics::KvStrides& k = rows.fresh ? a.key.strides : a.cache_k.strides;
  const semantics::KvStrides& v = rows.fresh ? a.value.strides : a.cache_v.strides;
  const auto add_run = [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
    const std::int64_t j = position - tile_begin, k_first = k.row(page, kv_head, offset), v_first = v.row(page, kv_head, offset);
    const std::int64_t k_step = k.token, v_step = v.token;  // copies need no reload after each store
    for (std::int64_t i = 0; i < count; ++i) rows.k[j + i] = k_first + i * k_step;
    for (std::int64_t i = 0; i < count; ++i) rows.v[j + i] = v_first + i * v_step;
    rows.run_begin[rows.num_runs] = j;
    rows.run_count[rows.num_runs++] = count;
    if (count > rows.longest_run) rows.longest_run = count;
  };
  if (rows.fresh) return add_run(0, a.query_start_loc[req] - a.reqs[req].context_len + begin, end - begin, begin);
  const semantics::PageRow pages = pages_of(a, req);
  semantics::for_each_page_run(pages, a.page_size, begin, end,
                               [&](std::int64_t page, std::int64_t offset, std::int64_t count, std::int64_t position) {
                                 add_run(page, offset, count, position);
                               });
}

/// Prefetches the lines of rows, line by line over all pages side by side. advance() is told how many keys of the
/// current tile are done; no division, no table look-up.
class LineWalk {
 public:
  /// Begins with `rows` rows of `bytes` bytes in each run of `next`, `row_stride` bytes apart; row(r) is the first of run r.
  /// Before that there are none.
  template <class Row>
  void begin(const TileRows& next, std::int64_t bytes, std::int64_t row_stride, std::int64_t rows, std::int64_t keys, Row&& row) {
    num_runs_ = next.num_runs;
    row_stride_ = row_stride;
    lines_ = (bytes + 63) / 64;
    steps_ = rows * lines_;
    keys_ = keys;
    for (std::int64_t r = 0; r < num_runs_; ++r) {
      runs_[r] = row(r);
      counts_[r] = next.run_count[r];
      if (r == 0 || counts_[r] < shortest_) shortest_ = counts_[r];
    }
  }

  void advance(std::int64_t keys) {
    std::int64_t steps = 0;
    for (credit_ += keys * steps_; credit_ >= keys_; credit_ -= keys_) ++steps;
    if (num_runs_ == 1) return walk_one_run(steps);
    for (; steps > 0; --steps) step();
  }

 private:
  /// One page is all there is: nothing but its lines in order.
  void walk_one_run(std::int64_t steps) {
    const std::uint8_t* at = runs_[0] + row_ * row_stride_;
    std::int64_t line = line_;
    for (; steps > 0; --steps) {
      __builtin_prefetch(at + line * 64, 0, 2);
      if (++line < lines_) continue;
      line = 0;
      ++row_;
      at += row_stride_;
    }
    line_ = line;
  }
  void step() {
    const std::int64_t offset = row_ * row_stride_ + line_ * 64;
    if (row_ < shortest_) {
      for (std::int64_t r = 0; r < num_runs_; ++r) __builtin_prefetch(runs_[r] + offset, 0, 2);
    } else {
      for (std::int64_t r = 0; r < num_runs_; ++r)
        if (row_ < counts_[r]) __builtin_prefetch(runs_[r] + offset, 0, 2);
    }
    if (++line_ < lines_) return;
    line_ = 0;
    ++row_;
  }

  const std::uint8_t* runs_[kMaxTileKv];
  std::int64_t counts_[kMaxTileKv];
  std::int64_t num_runs_ = 0, shortest_ = 0, row_stride_ = 0, lines_ = 1;
  std::int64_t steps_ = 0, keys_ = 1, credit_ = 0;  // prefetches: steps_ are spread over keys_ calls
  std::int64_t row_ = 0, line_ = 0;
};

/// Prefetches the lines of the next tile's K or V rows, and of the scales of their blocks, while the current one is worked on.
class PrefetchWalk {
 public:
  PrefetchWalk(const TileRows* next, const RowSource& source, const std::int64_t* offsets, const AttendArgs& a,
               std::int64_t keys) {
    if (next == nullptr) return;
    const auto first = [&](std::int64_t r) { return offsets[next->run_begin[r]]; };
    if (source.blocks != nullptr) {
      const BlockRows& rows = *source.blocks;
      const auto codes = [&](std::int64_t r) { return block_row_bytes(rows, first(r)).codes; };
      const auto scales = [&](std::int64_t r) { return block_row_bytes(rows, first(r)).scales; };
      const std::int64_t num_scales = source.dims / semantics::elements_of_block(rows.scales.cached);
      scales_.begin(*next, num_scales, rows.scales.token, next->longest_run, keys, scales);
      rows_.begin(*next, source.dims / 2, rows.strides.token / 2, next->longest_run, keys, codes);
      return;
    }
    const std::int64_t size = itemsize(source.dtype);
    // Rows that are not contiguous (the packed layout) are walked as the whole of their page and head.
    const bool whole = source.strides.dim == 1 && source.strides.x >= source.dims;
    const std::int64_t bytes = (whole ? source.dims : source.dims * a.page_size) * size;
    rows_.begin(*next, bytes, source.strides.token * size, whole ? next->longest_run : 1, keys,
                [&](std::int64_t r) { return static_cast<const std::uint8_t*>(source.data) + first(r) * size; });
  }

  void advance(std::int64_t keys) {
    rows_.advance(keys);
    scales_.advance(keys);
  }

 private:
  LineWalk rows_, scales_;
};

}  // namespace
}  // namespace quire::cpu
