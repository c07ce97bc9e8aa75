// SPDX-License-Identifier: Apache-2.0
// Stage: attend, schedule. The tiles of score rows of one work list.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/launch_sizes.h"
#include "semantics/visible_range.h"

namespace quire::gpu {

/// Score rows [row_begin, row_end) of a request and the keys that some of them sees; the first is a multiple of tile_keys.
struct Tile {
  std::int32_t req = 0;
  std::int32_t row_begin = 0, row_end = 0;
  std::int32_t key_begin = 0, key_end = 0;
};

/// Tiles that a request has in this list. num_tokens * num_q_heads fits 32 bits (plan() refuses more), so rows do.
QUIRE_DEVICE std::int32_t tiles_of(const AttendArgs& a, std::int32_t query_len) {
  const std::int32_t rows = query_len * a.group;
  if (rows <= a.work.min_rows || rows > a.work.max_rows) return 0;
  return (rows - 1) / a.work.tile_rows + 1;
}

/// Tiles of a request are counted from its last: that one sees the most keys, and the heaviest work should begin first.
QUIRE_DEVICE Tile tile_at(const AttendArgs& a, std::int32_t req, std::int32_t from_last) {
  const Lengths n = lengths_of(a, req);
  const std::int32_t rows = n.query_len * a.group;
  Tile tile;
  tile.req = req;
  tile.row_begin = (tiles_of(a, n.query_len) - 1 - from_last) * a.work.tile_rows;
  tile.row_end = tile.row_begin + a.work.tile_rows < rows ? tile.row_begin + a.work.tile_rows : rows;
  const semantics::KeyRange keys = sight_of(a, req, n).of_rows(tile.row_begin / a.group, (tile.row_end - 1) / a.group);
  tile.key_begin = static_cast<std::int32_t>(keys.begin) / a.work.tile_keys * a.work.tile_keys;
  tile.key_end = static_cast<std::int32_t>(keys.end);
  return tile;
}

/// Tiles of keys under a tile of rows.
QUIRE_DEVICE std::int32_t key_tiles_of(const AttendArgs& a, const Tile& tile) {
  return (tile.key_end - tile.key_begin - 1) / a.work.tile_keys + 1;
}

/// Tiles of keys under all tiles of a request, by a formula that is never below the true number:
/// with masks of any kind, no tile has more than all keys; without a window, spans grow by equal steps from the first tile to the
/// last; with one, no span is longer than the window, the positions of a tile's rows and the part of a tile before them.
QUIRE_DEVICE std::int64_t key_tiles_of(const AttendArgs& a, std::int64_t tiles, std::int64_t context_len, std::int64_t seq_len) {
  const std::int64_t tile_keys = a.work.tile_keys;
  if (a.has_masks) return tiles * (seq_len / tile_keys + 1);
  const std::int64_t first_end = context_len + (a.work.tile_rows - 1) / a.group + 1;
  const std::int64_t last_end = context_len + (tiles * a.work.tile_rows - 1) / a.group + 1;
  const std::int64_t grown = tiles * (first_end + last_end) / 2 / tile_keys + tiles;
  if (a.window <= 0) return grown;
  const std::int64_t widest = (a.work.tile_rows - 1) / a.group + 1 + static_cast<std::int64_t>(a.window) + 2 * (tile_keys - 1);
  const std::int64_t flat = tiles * (widest / tile_keys);
  return flat < grown ? flat : grown;
}

}  // namespace quire::gpu
