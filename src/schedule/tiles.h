// SPDX-License-Identifier: Apache-2.0
// Tiles of a work list: score rows of a request, tile_rows at a time, and the keys that they see, tile_keys at a time from key 0.
//
// The arithmetic of src/schedule/ is written once: devices cut their work by it, planning sizes memory and predicts by it, and
// tests run it. It knows no threads. Int: 32 bits on a device, 64 on the host.
#pragma once

#include <cstdint>

#include "semantics/qualifiers.h"

namespace quire::schedule {

/// Score rows [row_begin, row_end) of a request and the keys that some of them sees, the first rounded down to a whole tile.
template <class Int>
struct Tile {
  Int row_begin = 0, row_end = 0;
  Int key_begin = 0, key_end = 0;
};

/// How a list cuts requests: sizes of its tiles, and which requests it takes.
template <class Int>
struct Tiling {
  Int group = 1;  ///< score rows of a query row: query heads of a KV head
  Int tile_rows = 1, tile_keys = 1;
  Int min_rows = 0, max_rows = 0;  ///< takes the requests with min_rows < query_len * group <= max_rows

  /// Tiles of a request; 0 if the list does not take it. query_len * group fits Int.
  QUIRE_HD Int tiles(Int query_len) const {
    const Int rows = query_len * group;
    if (rows <= min_rows || rows > max_rows) return 0;
    return (rows - 1) / tile_rows + 1;
  }

  /// A tile of a request, counted from its last: that one sees the most keys, and the heaviest work should begin first.
  /// seen(first, last): the keys that some of these query rows sees.
  template <class Seen>
  QUIRE_HD Tile<Int> tile(Int query_len, Int from_last, Seen&& seen) const {
    const Int rows = query_len * group;
    Tile<Int> tile;
    tile.row_begin = (tiles(query_len) - 1 - from_last) * tile_rows;
    tile.row_end = tile.row_begin + tile_rows < rows ? tile.row_begin + tile_rows : rows;
    const auto keys = seen(tile.row_begin / group, (tile.row_end - 1) / group);
    tile.key_begin = static_cast<Int>(keys.begin) / tile_keys * tile_keys;
    tile.key_end = static_cast<Int>(keys.end);
    return tile;
  }

  /// Tiles of keys under a tile of rows; one where the rows see nothing.
  QUIRE_HD Int key_tiles(const Tile<Int>& tile) const { return (tile.key_end - tile.key_begin - 1) / tile_keys + 1; }

  /// Tiles of keys under all `tiles` tiles of a request, never below the true number:
  /// with masks of any kind, no tile has more than all keys; without a window (0), spans grow by equal steps from the first tile
  /// to the last; with one, no span is longer than the window, the positions of a tile's rows and the part of a tile before them.
  QUIRE_HD std::int64_t most_key_tiles(std::int64_t tiles, std::int64_t context_len, std::int64_t seq_len, std::int64_t window,
                                       bool has_masks) const {
    if (has_masks) return tiles * (seq_len / tile_keys + 1);
    const std::int64_t first_end = context_len + (tile_rows - 1) / group + 1;
    const std::int64_t last_end = context_len + (tiles * tile_rows - 1) / group + 1;
    const std::int64_t grown = tiles * (first_end + last_end) / 2 / tile_keys + tiles;
    if (window <= 0) return grown;
    const std::int64_t widest = (tile_rows - 1) / group + 1 + window + 2 * (std::int64_t{tile_keys} - 1);
    const std::int64_t flat = tiles * (widest / tile_keys);
    return flat < grown ? flat : grown;
  }
};

}  // namespace quire::schedule
