// Stage: attend, schedule. The tiles of score rows of one work list, dealt to the threads of a block.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/block_scan.h"
#include "semantics/visible_range.h"

namespace quire::gpu {

constexpr int kScheduleThreads = 256;

/// Score rows [row_begin, row_end) of a request and the keys that some of them sees; the first is a multiple of tile_keys.
struct Tile {
  std::int32_t req = 0;
  std::int32_t row_begin = 0, row_end = 0;
  std::int32_t key_begin = 0, key_end = 0;
};

QUIRE_DEVICE std::int32_t tiles_of(const AttendArgs& a, std::int32_t req) {
  const std::int64_t rows = static_cast<std::int64_t>(lengths_of(a, req).query_len) * a.group;
  if (rows <= a.work.min_rows || rows > a.work.max_rows) return 0;
  return static_cast<std::int32_t>((rows + a.work.tile_rows - 1) / a.work.tile_rows);
}

/// Tiles of a request are counted from its last: that one sees the most keys, and the heaviest work should begin first.
QUIRE_DEVICE Tile tile_at(const AttendArgs& a, std::int32_t req, std::int32_t from_last) {
  const Lengths n = lengths_of(a, req);
  const std::int32_t rows = n.query_len * a.group;
  Tile tile;
  tile.req = req;
  tile.row_begin = (tiles_of(a, req) - 1 - from_last) * a.work.tile_rows;
  tile.row_end = tile.row_begin + a.work.tile_rows < rows ? tile.row_begin + a.work.tile_rows : rows;
  const semantics::KeyRange keys =
      semantics::visible_range(n.context_len + tile.row_begin / a.group, n.context_len + (tile.row_end - 1) / a.group, a.window);
  tile.key_begin = static_cast<std::int32_t>(keys.begin / a.work.tile_keys * a.work.tile_keys);
  tile.key_end = static_cast<std::int32_t>(keys.end);
  return tile;
}

using TileCounts = BlockScan<std::int32_t, kScheduleThreads>;

/// The largest request of `prefix` whose tiles begin at or before `index`.
QUIRE_DEVICE int request_of(const TileCounts& counts, std::int32_t index) {
  int low = 0, high = kScheduleThreads - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (counts.of(middle) > index) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Calls visit(tile, valid) on every thread equally often, with each tile valid on exactly one thread. `visit` may use barriers.
template <class Visit>
QUIRE_DEVICE void for_each_tile(const AttendArgs& a, TileCounts& counts, Visit&& visit) {
  const int t = thread_index();
  for (std::int32_t first_req = 0; first_req < a.num_reqs; first_req += kScheduleThreads) {
    counts.inclusive(first_req + t < a.num_reqs ? tiles_of(a, first_req + t) : 0);
    const std::int32_t total = counts.total();
    for (std::int32_t first = 0; first < total; first += kScheduleThreads) {
      const std::int32_t index = first + t;
      Tile tile;
      if (index < total) {
        const int r = request_of(counts, index);
        tile = tile_at(a, first_req + r, index - (r > 0 ? counts.of(r - 1) : 0));
      }
      visit(tile, index < total);
    }
  }
}

}  // namespace quire::gpu
