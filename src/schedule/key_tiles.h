// SPDX-License-Identifier: Apache-2.0
// Tiles of keys that a part of a work list's tile meets where keys come from two places: the cache, in tiles at multiples of
// tile_keys, and this step's `key` and `value`, in tiles that begin at the first of them. A tile never holds both.
//
// Within a place, the last tile comes first. Fresh tiles come before cached ones, as they come later in the
// request, or after them where what is summed of cached values is scaled on its own.
#pragma once

#include "semantics/qualifiers.h"

namespace quire::schedule {

/// Keys [begin, end) of a tile are there and seen by some row; its first row is position `first`.
template <class Int>
struct KeyTileSpan {
  Int first, begin, end;
  bool fresh;  ///< rows of `key` and `value`
};

/// Tiles of both places under keys [key_begin, key_end) of a part.
template <class Int>
struct KeyTiles {
  Int cached_end;  ///< positions [key_begin, cached_end) are read from the cache, [fresh_begin, key_end) are fresh
  Int fresh_begin;
  Int fresh_tiles;
  Int cached_tiles;

  QUIRE_HD Int count() const { return fresh_tiles + cached_tiles; }
};

/// `keys` has key_begin and key_end. It and the result come by reference: by value, nvcc orders instructions otherwise.
template <class Keys, class Int>
QUIRE_HD void find_key_tiles(const Keys& keys, Int cached_len, Int tile_keys, KeyTiles<Int>& tiles) {
  tiles.cached_end = keys.key_end < cached_len ? keys.key_end : cached_len;
  tiles.fresh_begin = keys.key_begin > cached_len ? keys.key_begin : cached_len;
  tiles.cached_tiles =
      tiles.cached_end <= keys.key_begin ? 0 : (tiles.cached_end - 1) / tile_keys - keys.key_begin / tile_keys + 1;
  tiles.fresh_tiles = keys.key_end <= tiles.fresh_begin ? 0 : (keys.key_end - tiles.fresh_begin - 1) / tile_keys + 1;
}

/// Numbers of the first tiles of both places.
template <class Int>
struct KeyTileOrder {
  Int first_fresh, first_cached;

  QUIRE_HD bool is_fresh(const KeyTiles<Int>& tiles, Int n) const {
    return n >= first_fresh && n < first_fresh + tiles.fresh_tiles;
  }
};

template <class Int>
QUIRE_HD void find_order(const KeyTiles<Int>& tiles, bool cached_first, KeyTileOrder<Int>& order) {
  order.first_fresh = cached_first ? tiles.cached_tiles : 0;
  order.first_cached = cached_first ? 0 : tiles.fresh_tiles;
}

/// Tile n of tiles.count(), under the same keys.
template <class Int, class Keys>
QUIRE_HD KeyTileSpan<Int> key_tile(const KeyTiles<Int>& tiles, const KeyTileOrder<Int>& order, const Keys& keys, Int tile_keys,
                                   Int n) {
  if (order.is_fresh(tiles, n)) {
    const Int later = order.first_fresh + tiles.fresh_tiles - 1 - n;  // tiles between it and the first fresh key
    return {tiles.fresh_begin + later * tile_keys, tiles.fresh_begin, keys.key_end, true};
  }
  const Int last = (tiles.cached_end - 1) / tile_keys;
  return {(last - (n - order.first_cached)) * tile_keys, keys.key_begin, tiles.cached_end, false};
}

/// Tiles [begin, end) of a place that no row sees: they lie in the gap of a mask with regions (semantics/mask.h). Counted from
/// the place's origin, which is position 0 for the cache and the first of the fresh keys for these.
template <class Int>
struct TileGap {
  Int begin = 0, end = 0;
  QUIRE_HD Int count() const { return end - begin; }
};
template <class Int>
struct TileGaps {
  TileGap<Int> cached, fresh;
};

/// Whole tiles between keys [gap_begin, gap_end) of a place with keys [first, last).
template <class Int>
QUIRE_HD TileGap<Int> tiles_in_gap(Int origin, Int first, Int last, Int gap_begin, Int gap_end, Int tile_keys) {
  const Int lowest = (first - origin) / tile_keys, highest = (last - 1 - origin) / tile_keys + 1;
  TileGap<Int> gap;
  gap.begin = gap_begin <= first ? lowest : (gap_begin - origin - 1) / tile_keys + 1;
  gap.end = gap_end >= last ? highest : gap_end <= origin ? 0 : (gap_end - origin) / tile_keys;
  if (last <= first || gap.end <= gap.begin) gap.begin = gap.end = lowest;
  return gap;
}

/// Takes the tiles in the gap away from those that find_key_tiles() found.
template <class Keys, class Int>
QUIRE_HD void skip_gap(const Keys& keys, Int gap_begin, Int gap_end, Int tile_keys, KeyTiles<Int>& tiles, TileGaps<Int>& gaps) {
  gaps.cached = tiles_in_gap<Int>(0, keys.key_begin, tiles.cached_end, gap_begin, gap_end, tile_keys);
  gaps.fresh = tiles_in_gap<Int>(tiles.fresh_begin, tiles.fresh_begin, keys.key_end, gap_begin, gap_end, tile_keys);
  tiles.cached_tiles -= gaps.cached.count();
  tiles.fresh_tiles -= gaps.fresh.count();
}

/// Tile n of tiles.count() where tiles in gaps are skipped.
template <class Int, class Keys>
QUIRE_HD KeyTileSpan<Int> key_tile(const KeyTiles<Int>& tiles, const KeyTileOrder<Int>& order, const TileGaps<Int>& gaps,
                                   const Keys& keys, Int tile_keys, Int n) {
  if (order.is_fresh(tiles, n)) {
    Int at = order.first_fresh + tiles.fresh_tiles - 1 - n;
    if (at >= gaps.fresh.begin) at += gaps.fresh.count();
    return {tiles.fresh_begin + at * tile_keys, tiles.fresh_begin, keys.key_end, true};
  }
  Int at = (tiles.cached_end - 1) / tile_keys - (n - order.first_cached);
  if (at < gaps.cached.end) at -= gaps.cached.count();
  return {at * tile_keys, keys.key_begin, tiles.cached_end, false};
}

}  // namespace quire::schedule
