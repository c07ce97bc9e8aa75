// SPDX-License-Identifier: Apache-2.0
// Cuts of tiles into parts (split-KV; Flash-Decoding, Dao et al. 2023) where a list of items is written.
//
// With split_keys set, tiles are cut at multiples of it, counted from key 0: a row is folded over the same segments however its
// request is batched or chunked. Otherwise a tile is cut into equal parts, as few as make about target_items items in all and,
// where that can be had, not more: blocks that draw a second item while others have none would double the time.
#pragma once

#include <cstdint>

#include "schedule/key_tiles.h"
#include "schedule/tiles.h"
#include "semantics/qualifiers.h"
#include "semantics/visible_range.h"

namespace quire::schedule {

inline constexpr std::int32_t kMinPartTiles = 4;    ///< shorter parts cost more in merging than they gain
inline constexpr std::int32_t kUncut = 0x7FFFFFFF;  ///< a part size, in tiles of keys, that cuts nothing
inline constexpr int kPartSizes = 9;                ///< part sizes that are tried, from what the load asks for to twice that

/// The first part size that is tried, in tiles of keys: as many parts as items are wanted, were all tiles cut evenly. key_tiles:
/// of all tiles, or a bound.
QUIRE_HD std::int32_t first_part_tiles(std::int64_t key_tiles, std::int64_t num_kv_heads, std::int64_t target_items) {
  if (target_items <= 0) return kUncut;
  const std::int64_t even = (key_tiles * num_kv_heads + target_items - 1) / target_items;
  if (even > kUncut / 2) return kUncut;
  return even < kMinPartTiles ? kMinPartTiles : static_cast<std::int32_t>(even);
}

/// Part size i of kPartSizes.
QUIRE_HD std::int32_t tried_part_tiles(std::int32_t part_tiles, int i) {
  return static_cast<std::int32_t>(part_tiles + static_cast<std::int64_t>(part_tiles) * i / (kPartSizes - 1));
}

/// Parts of `tiles` tiles of a request, the last of which has that many key tiles: no other has many more.
template <class Int>
QUIRE_HD std::int64_t tried_parts(std::int64_t tiles, Int key_tiles_of_last, std::int32_t part_tiles) {
  return ((key_tiles_of_last - 1) / part_tiles + 1) * tiles;
}

/// The smallest of the tried part sizes that makes no more than target_items items, which makes_few(i) says of part size i; the
/// first if none does.
template <class MakesFew>
QUIRE_HD std::int32_t chosen_part_tiles(std::int32_t part_tiles, MakesFew&& makes_few) {
#if defined(__CUDA_ARCH__) || defined(__HIP__)
#pragma unroll
#endif
  for (int i = 0; i < kPartSizes; ++i)
    if (makes_few(i)) return tried_part_tiles(part_tiles, i);
  return part_tiles;
}

/// A tile is cut at cut_origin() + keys, cut_origin() + 2 keys, ...
template <class Int>
struct Cuts {
  Int keys = 0, parts = 0;
};

/// From where the keys of parts are counted, for a tile that begins at key_begin.
template <class Int>
QUIRE_HD Int cut_origin(Int key_begin, Int split_keys) {
  return split_keys > 0 ? key_begin / split_keys * split_keys : key_begin;
}

/// part_tiles: the part size where split_keys does not give it. A part alone has no cut: tiles times tile_keys might not fit Int.
template <class Int>
QUIRE_HD Cuts<Int> cuts_of(const Tiling<Int>& tiling, const Tile<Int>& tile, Int split_keys, std::int32_t part_tiles) {
  if (split_keys > 0) return {split_keys, (tile.key_end - 1 - cut_origin(tile.key_begin, split_keys)) / split_keys + 1};
  const Int all = tiling.key_tiles(tile), wanted = (all - 1) / part_tiles + 1, tiles = (all - 1) / wanted + 1;
  const Int parts = (all - 1) / tiles + 1;
  return {parts == 1 ? tile.key_end - tile.key_begin : tiles * tiling.tile_keys, parts};
}

/// Parts of a tile that lie in a gap of its keys, which no row sees: they may be left out. Parts count from 0, cuts lie at
/// multiples of split_keys, and one part stays.
template <class Int>
QUIRE_HD TileGap<Int> parts_in_gap(semantics::KeyRangeIn<Int> keys, Int gap_begin, Int gap_end, Int split_keys) {
  const Int origin = cut_origin(keys.begin, split_keys);
  TileGap<Int> gap = tiles_in_gap<Int>(origin, keys.begin, keys.end, gap_begin, gap_end, split_keys);
  if (gap.count() > 0 && origin + std::int64_t{gap.count()} * split_keys >= keys.end) --gap.end;
  return gap;
}

/// Keys of part `part` of a tile with these keys, whose cuts are `part_keys` apart and whose first is at first_cut.
template <class Int>
QUIRE_HD semantics::KeyRangeIn<Int> part_of(semantics::KeyRangeIn<Int> keys, Int part, std::int64_t first_cut, Int part_keys) {
  const std::int64_t end = first_cut + static_cast<std::int64_t>(part) * part_keys, begin = end - part_keys;
  if (begin > keys.begin) keys.begin = static_cast<Int>(begin);
  if (end < keys.end) keys.end = static_cast<Int>(end);
  return keys;
}

}  // namespace quire::schedule
