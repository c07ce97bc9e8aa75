// SPDX-License-Identifier: Apache-2.0
// Stage: attend, before the attend kernels. Writes one work list from the lengths on the device: one block per list. Reads
// lengths and nothing else, and checks them itself, so it may run beside validate(). Tiles and cuts are those of src/schedule/;
// the sums over threads and the lists are here.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/block_scan.h"
#include "backend/gpu/break_call.h"
#include "backend/gpu/checked_lengths.h"
#include "backend/gpu/launch_sizes.h"
#include "backend/gpu/tiles.h"
#include "schedule/cuts.h"
#include "schedule/division.h"

namespace quire::gpu {

using schedule::kPartSizes;
using schedule::kUncut;

/// What all requests ask for.
struct Load {
  std::int64_t key_tiles = 0;    ///< see schedule::Tiling::most_key_tiles()
  std::int64_t short_tiles = 0;  ///< see schedule/division.h
  std::int32_t unsound = 0;      ///< requests whose lengths break a rule
  QUIRE_DEVICE Load operator+(const Load& o) const {
    return {key_tiles + o.key_tiles, short_tiles + o.short_tiles, unsound + o.unsound};
  }
  QUIRE_DEVICE static std::int64_t shuffled(std::int64_t value, int lane) {
    const auto bits = static_cast<std::uint64_t>(value);
    const std::uint64_t low = shuffle(static_cast<std::uint32_t>(bits), lane);
    const std::uint64_t high = shuffle(static_cast<std::uint32_t>(bits >> 32), lane);
    return static_cast<std::int64_t>(high << 32 | low);
  }
  QUIRE_DEVICE Load from(int lane) const {
    return {shuffled(key_tiles, lane), shuffled(short_tiles, lane),
            static_cast<std::int32_t>(shuffle(static_cast<std::uint32_t>(unsound), lane))};
  }
};

/// Slices that would be made, by part size.
struct Tried {
  Count slices[kPartSizes];
  QUIRE_DEVICE Tried operator+(const Tried& o) const {
    Tried sum;
    QUIRE_UNROLL
    for (int i = 0; i < kPartSizes; ++i) sum.slices[i] = slices[i] + o.slices[i];
    return sum;
  }
  QUIRE_DEVICE Tried from(int lane) const {
    Tried other;
    QUIRE_UNROLL
    for (int i = 0; i < kPartSizes; ++i) other.slices[i] = {shuffle(slices[i].value, lane)};
    return other;
  }
};

/// A number of tiles.
struct Tiles {
  std::int32_t count = 0;
  QUIRE_DEVICE Tiles operator+(const Tiles& o) const { return {count + o.count}; }
  QUIRE_DEVICE Tiles from(int lane) const {
    return {static_cast<std::int32_t>(shuffle(static_cast<std::uint32_t>(count), lane))};
  }
};

/// Entries of the work list: slices, and merge counters; of one tile or summed over tiles.
struct ListEntries {
  Count slices, merges;
  QUIRE_DEVICE ListEntries operator+(const ListEntries& o) const { return {slices + o.slices, merges + o.merges}; }
  QUIRE_DEVICE ListEntries from(int lane) const { return {{shuffle(slices.value, lane)}, {shuffle(merges.value, lane)}}; }
  /// Parts of split tiles, where `tiles` tiles have these entries: a tile that is not split is one slice.
  QUIRE_DEVICE std::int64_t parts(std::int64_t tiles) const {
    return static_cast<std::int64_t>(slices.value) - tiles + static_cast<std::int64_t>(merges.value);
  }
};

/// What the block holds in shared memory.
struct ScheduleBlock {
  BlockScan<Load, kScheduleThreads> loads;
  BlockScan<Tried, kScheduleThreads> tried;
  BlockScan<Tiles, kScheduleThreads> tiles;
  BlockScan<ListEntries, kScheduleThreads> entries;
  std::int32_t* tile_begin;   ///< [kScheduleThreads] first tile of each current request
  std::int32_t* slice_begin;  ///< [kScheduleThreads] first slice of each current tile
  WorkSlice* slice;           ///< [kScheduleThreads] what its slices have in common; key_begin and key_end are the tile's
  std::int32_t* part_keys;    ///< [kScheduleThreads] keys from cut to cut

  QUIRE_DEVICE explicit ScheduleBlock(SharedArea& area)
      : loads(area),
        tried(area),
        tiles(area),
        entries(area),
        tile_begin(area.take<std::int32_t>(kScheduleThreads)),
        slice_begin(area.take<std::int32_t>(kScheduleThreads)),
        slice(area.take<WorkSlice>(kScheduleThreads)),
        part_keys(area.take<std::int32_t>(kScheduleThreads)) {}
  static constexpr int kBytes = decltype(loads)::kBytes + decltype(tried)::kBytes + decltype(tiles)::kBytes +
                                decltype(entries)::kBytes + 3 * piece_bytes<std::int32_t>(kScheduleThreads) +
                                piece_bytes<WorkSlice>(kScheduleThreads);
};
constexpr int kScheduleSharedBytes = ScheduleBlock::kBytes;

/// The last of kScheduleThreads ascending numbers that is at most `index`; the first of them is.
QUIRE_DEVICE int last_at_or_below(const std::int32_t* begins, std::int32_t index) {
  int low = 0;
  for (int step = kScheduleThreads / 2; step > 0; step /= 2)
    if (begins[low + step] <= index) low += step;
  return low;
}

/// The same on every thread.
QUIRE_DEVICE Load load_of(const AttendArgs& a, ScheduleBlock& block) {
  Load mine;
  mine.unsound = starts_are_sound(a) ? 0 : 1;
  for (std::int32_t req = thread_index(); req < a.num_reqs; req += kScheduleThreads) {
    const CheckedLengths n = checked_lengths_of(a, req);
    if (!n.sound) mine.unsound = 1;
    if (!n.sound) continue;
    const std::int32_t tiles = tiling_of(a).tiles(static_cast<std::int32_t>(n.query_len));
    mine.key_tiles += tiling_of(a).most_key_tiles(tiles, n.context_len, n.seq_len, a.window, a.has_masks);
    if (!a.has_masks) mine.short_tiles += schedule::short_tiles_of(a, n.query_len, n.context_len);
  }
  block.loads.exclusive(mine);
  return block.loads.total();
}

/// schedule::chosen_part_tiles(), from what all threads count.
QUIRE_DEVICE std::int32_t part_tiles_for_target(const AttendArgs& a, std::int32_t part_tiles, ScheduleBlock& block) {
  Tried mine;
  for (std::int32_t req = thread_index(); req < a.num_reqs; req += kScheduleThreads) {
    const std::int32_t tiles = tiling_of(a).tiles(lengths_of(a, req).query_len);
    if (tiles == 0) continue;
    const std::int32_t of_last = tiling_of(a).key_tiles(tile_at(a, req, 0));
    QUIRE_UNROLL
    for (int i = 0; i < kPartSizes; ++i) {
      const std::int64_t parts = schedule::tried_parts(tiles, of_last, schedule::tried_part_tiles(part_tiles, i));
      mine.slices[i] = mine.slices[i] + Count::of(parts);
    }
  }
  block.tried.exclusive(mine);
  const Tried all = block.tried.total();
  const std::int32_t room = a.work.target_items / a.num_kv_heads;
  return schedule::chosen_part_tiles(part_tiles, [&](int i) { return all.slices[i].fits(room); });
}

/// Part size to begin with, in tiles of keys, where split_keys does not give it.
QUIRE_DEVICE std::int32_t first_part_tiles(const AttendArgs& a, const Load& load, ScheduleBlock& block) {
  if (a.work.split_keys > 0) return kUncut;
  const std::int32_t first = schedule::first_part_tiles(load.key_tiles, a.num_kv_heads, a.work.target_items);
  return first == kUncut ? kUncut : part_tiles_for_target(a, first, block);
}

/// `begin`: entries of the `tiles` tiles before it.
QUIRE_DEVICE WorkSlice whole_slice(const AttendArgs& a, std::int32_t req, const Tile& tile, const ListEntries& count,
                                   const ListEntries& begin, std::int64_t tiles) {
  WorkSlice slice;
  slice.req = req;
  slice.row_begin = tile.row_begin;
  slice.row_end = tile.row_end;
  slice.num_parts = static_cast<std::int32_t>(count.slices.value);
  slice.key_begin = tile.key_begin;
  slice.key_end = tile.key_end;
  if (slice.num_parts > 1) {
    slice.merge = static_cast<std::int32_t>(begin.merges.value);
    slice.first_partial = static_cast<std::int32_t>(begin.parts(tiles) * a.num_kv_heads);
  }
  return slice;
}

/// The slices of the tiles that block.slice describes, and their merge counters, as far as there is room. `done`: before them;
/// `count`: theirs.
QUIRE_DEVICE void write_slices(const AttendArgs& a, const ScheduleBlock& block, const ListEntries& done,
                               const ListEntries& count) {
  const WorkList& work = a.work;
  const auto first = static_cast<std::int64_t>(done.slices.value);
  for (std::int64_t i = thread_index(); i < count.slices.value && first + i < work.max_slices; i += kScheduleThreads) {
    const int tile = last_at_or_below(block.slice_begin, static_cast<std::int32_t>(i));
    const std::int32_t part_keys = block.part_keys[tile];
    const std::int32_t part = static_cast<std::int32_t>(i) - block.slice_begin[tile];
    const WorkSlice& whole = block.slice[tile];
    const std::int64_t first_cut = std::int64_t{schedule::cut_origin(whole.key_begin, work.split_keys)} + part_keys;
    const auto left_out = parts_behind_table(a, whole.req, whole);
    const std::int32_t at = part < left_out.begin ? part : part + left_out.count();
    const auto keys = schedule::part_of<std::int32_t>({whole.key_begin, whole.key_end}, at, first_cut, part_keys);
    WorkSlice& slice = work.slices[first + i];
    slice = whole;
    slice.part = part;
    slice.key_begin = keys.begin;
    slice.key_end = keys.end;
  }
  const std::int64_t merges = static_cast<std::int64_t>(done.merges.value) + count.merges.value;
  const std::int64_t end = (merges < work.max_merges ? merges : work.max_merges) * a.num_kv_heads;
  for (std::int64_t i = static_cast<std::int64_t>(done.merges.value) * a.num_kv_heads + thread_index(); i < end;
       i += kScheduleThreads)
    work.parts_done[i] = 0;
}

/// All tiles and the entries that they took.
struct Dealt {
  ListEntries entries;
  std::int64_t tiles = 0;
  QUIRE_DEVICE bool fits(const AttendArgs& a) const {
    const WorkList& work = a.work;
    return entries.slices.fits(work.max_slices) && entries.merges.fits(work.max_merges) &&
           entries.parts(tiles) * a.num_kv_heads <= work.max_partials;
  }
};

/// The list with parts of part_tiles tiles of keys, as far as there is room. The requests [first_req, first_req +
/// kScheduleThreads) have their first tiles in block.tile_begin, `total` in all.
QUIRE_DEVICE void deal_tiles(const AttendArgs& a, ScheduleBlock& block, std::int32_t part_tiles, std::int32_t first_req,
                             std::int32_t total, Dealt& done) {
  for (std::int32_t first = 0; first < total; first += kScheduleThreads) {
    const std::int32_t index = first + thread_index();
    std::int32_t req = 0;
    Tile tile;
    schedule::Cuts<std::int32_t> cuts;
    if (index < total) {
      const int r = last_at_or_below(block.tile_begin, index);
      req = first_req + r;
      tile = tile_at(a, req, index - block.tile_begin[r]);
      cuts = schedule::cuts_of(tiling_of(a), tile, a.work.split_keys, part_tiles);
      cuts.parts -= parts_behind_table(a, req, tile).count();
    }
    const ListEntries count{Count::of(cuts.parts), Count::of(cuts.parts > 1 ? 1 : 0)};
    const ListEntries before = block.entries.exclusive(count);
    block.slice_begin[thread_index()] = static_cast<std::int32_t>(before.slices.value);
    block.slice[thread_index()] = whole_slice(a, req, tile, count, done.entries + before, done.tiles + thread_index());
    block.part_keys[thread_index()] = cuts.keys;
    block_barrier();  // tiles of the current requests are described
    const ListEntries all = block.entries.total();
    write_slices(a, block, done.entries, all);
    done.entries = done.entries + all;
    done.tiles += total - first < kScheduleThreads ? total - first : kScheduleThreads;
  }
}

QUIRE_DEVICE Dealt deal(const AttendArgs& a, ScheduleBlock& block, std::int32_t part_tiles) {
  Dealt done;
  for (std::int32_t first_req = 0; first_req < a.num_reqs; first_req += kScheduleThreads) {
    const std::int32_t req = first_req + thread_index();
    const std::int32_t mine = req < a.num_reqs ? tiling_of(a).tiles(lengths_of(a, req).query_len) : 0;
    const Tiles before = block.tiles.exclusive({mine});
    block.tile_begin[thread_index()] = before.count;
    block_barrier();  // the first tile of every request is known
    deal_tiles(a, block, part_tiles, first_req, block.tiles.total().count, done);
  }
  return done;
}

/// One block of kScheduleThreads threads. A list without room for its tiles breaks the call: the plan assumed shorter lengths.
QUIRE_DEVICE void schedule(const AttendArgs& a, SharedArea shared) {
  ScheduleBlock block(shared);
  const Load load = load_of(a, block);
  Dealt done;
  bool room = load.unsound == 0;  // lengths that break a rule may not be read as indices
  if (room) {
    std::int32_t part_tiles = first_part_tiles(a, load, block);
    for (;;) {
      done = deal(a, block, part_tiles);
      room = done.fits(a);
      if (room || part_tiles == kUncut) break;
      part_tiles = part_tiles < kUncut / 2 ? part_tiles * 2 : kUncut;
    }
  }
  if (thread_index() != 0) return;
  if (!room) break_call(a);
  *a.work.num_slices = room ? static_cast<std::int32_t>(done.entries.slices.value) : 0;
  *a.work.next_item = 0;
  if (a.work.division.all_units > 0)
    *a.work.division.units = a.work.division.given_units > 0
                                 ? a.work.division.given_units
                                 : schedule::units_for_long(load.key_tiles, load.short_tiles, a.work.division);
}

}  // namespace quire::gpu
