// Stage: attend, second kernel. Writes one work list from the lengths on the device: one block per list, after validate().
//
// Every tile of score rows is cut into parts at multiples of the part size, counted from key 0. With split_keys set, parts depend
// on nothing else, so a row is folded over the same segments however its request is batched or chunked.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/tiles.h"

namespace quire::gpu {

constexpr std::int32_t kMinPartTiles = 4;        ///< shorter parts cost more in merging than they gain
constexpr std::int32_t kWholeTile = 0x7FFFFFFF;  ///< a part size that cuts nothing

/// Places in the work list; of one tile or summed over tiles.
struct Places {
  std::int64_t slices = 0, merges = 0, partials = 0;
  QUIRE_DEVICE Places operator+(const Places& o) const { return {slices + o.slices, merges + o.merges, partials + o.partials}; }
};

using PlaceScan = BlockScan<Places, kScheduleThreads>;

constexpr int kScheduleSharedBytes = TileCounts::kBytes + PlaceScan::kBytes;

QUIRE_DEVICE Places places_of(const AttendArgs& a, const Tile& tile, std::int32_t part_keys) {
  const std::int32_t parts = (tile.key_end - 1) / part_keys - tile.key_begin / part_keys + 1;
  if (parts == 1) return {1, 0, 0};
  return {parts, 1, static_cast<std::int64_t>(parts) * a.num_kv_heads};
}

/// Sum of `count(tile)` over all tiles, on every thread.
template <class Count>
QUIRE_DEVICE Places sum_over_tiles(const AttendArgs& a, TileCounts& counts, PlaceScan& scan, Count&& count) {
  Places mine;
  for_each_tile(a, counts, [&](const Tile& tile, bool valid) {
    if (valid) mine = mine + count(tile);
  });
  scan.inclusive(mine);
  return scan.total();
}

QUIRE_DEVICE bool fits(const WorkList& work, const Places& p) {
  return p.slices <= work.max_slices && p.merges <= work.max_merges && p.partials <= work.max_partials;
}

/// Part size in keys, a multiple of tile_keys: as given, or so that about target_items items are made; 0 if the list is too
/// small.
QUIRE_DEVICE std::int32_t choose_part_keys(const AttendArgs& a, TileCounts& counts, PlaceScan& scan) {
  const WorkList& work = a.work;
  const auto places = [&](std::int32_t part_keys) {
    return sum_over_tiles(a, counts, scan, [&](const Tile& tile) { return places_of(a, tile, part_keys); });
  };
  if (work.split_keys > 0) return fits(work, places(work.split_keys)) ? work.split_keys : 0;

  const Places load = sum_over_tiles(a, counts, scan, [&](const Tile& tile) {
    return Places{1, (tile.key_end - tile.key_begin + work.tile_keys - 1) / work.tile_keys, 0};  // merges: tiles of keys
  });
  std::int64_t part_tiles = kWholeTile;
  if (work.target_items > 0) {
    part_tiles = (load.merges * a.num_kv_heads + work.target_items - 1) / work.target_items;
    if (part_tiles < kMinPartTiles) part_tiles = kMinPartTiles;
  }
  for (; part_tiles * work.tile_keys < kWholeTile; part_tiles *= 2) {
    const auto part_keys = static_cast<std::int32_t>(part_tiles * work.tile_keys);
    if (fits(work, places(part_keys))) return part_keys;
  }
  return load.slices <= work.max_slices ? kWholeTile : 0;
}

QUIRE_DEVICE void write_slices(const AttendArgs& a, const Tile& tile, std::int32_t part_keys, const Places& count,
                               const Places& begin) {
  const WorkList& work = a.work;
  WorkSlice slice;
  slice.req = tile.req;
  slice.row_begin = tile.row_begin;
  slice.row_end = tile.row_end;
  slice.num_parts = static_cast<std::int32_t>(count.slices);
  if (count.merges != 0) {
    slice.merge = static_cast<std::int32_t>(begin.merges);
    slice.first_partial = static_cast<std::int32_t>(begin.partials);
    for (std::int32_t h = 0; h < a.num_kv_heads; ++h) work.parts_done[begin.merges * a.num_kv_heads + h] = 0;
  }
  const std::int64_t first_part = tile.key_begin / part_keys;
  for (std::int32_t part = 0; part < slice.num_parts; ++part) {
    const std::int64_t cut = (first_part + part) * part_keys, next_cut = cut + part_keys;
    slice.part = part;
    slice.key_begin = cut > tile.key_begin ? static_cast<std::int32_t>(cut) : tile.key_begin;
    slice.key_end = next_cut < tile.key_end ? static_cast<std::int32_t>(next_cut) : tile.key_end;
    work.slices[begin.slices + part] = slice;
  }
}

/// One block of kScheduleThreads threads. A list without room for its tiles breaks the call: the plan assumed shorter lengths.
QUIRE_DEVICE void schedule(const AttendArgs& a, SharedArea shared) {
  TileCounts counts(shared);
  PlaceScan scan(shared);
  // Lengths that break a rule may not be read as indices, so every thread must agree to stop here.
  const bool broken = a.outcome->broken != 0;
  std::int32_t part_keys = 0;
  Places done;
  if (!broken) part_keys = choose_part_keys(a, counts, scan);
  if (part_keys != 0) {
    for_each_tile(a, counts, [&](const Tile& tile, bool valid) {
      const Places count = valid ? places_of(a, tile, part_keys) : Places{};
      const Places end = done + scan.inclusive(count);
      if (valid) {
        const Places begin{end.slices - count.slices, end.merges - count.merges, end.partials - count.partials};
        write_slices(a, tile, part_keys, count, begin);
      }
      done = done + scan.total();
    });
  }
  if (thread_index() != 0) return;
  if (!broken && part_keys == 0) atomic_set(&a.outcome->broken, 1);
  *a.work.num_slices = static_cast<std::int32_t>(done.slices);
  *a.work.next_item = 0;
}

}  // namespace quire::gpu
