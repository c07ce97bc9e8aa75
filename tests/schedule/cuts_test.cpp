// SPDX-License-Identifier: Apache-2.0
// The cuts of src/schedule, as devices make them: every key of every row in exactly one part, parts at absolute cuts where their
// size is fixed, and lists that fit the capacities of their plans. All small cases, and numbers near the ends of 32 bits.
#include "schedule/cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "schedule/capacities.h"
#include "schedule/tiles.h"

namespace quire::schedule {
namespace {

/// A request of a list, whose rows are causal and at the end of its keys.
struct Request {
  std::int64_t query_len = 0, context_len = 0;
};

/// What a list is cut by.
struct List {
  std::int64_t group = 1, tile_rows = 1, tile_keys = 1, min_rows = 0, max_rows = 1 << 20;
  std::int64_t window = 0, split_keys = 0, target_items = 0, num_kv_heads = 1;

  template <class Int>
  Tiling<Int> tiling() const {
    return {Int(group), Int(tile_rows), Int(tile_keys), Int(min_rows), Int(max_rows)};
  }
  template <class Int>
  Tile<Int> tile(const Request& r, Int from_last) const {
    return tiling<Int>().tile(Int(r.query_len), from_last, [&](Int first, Int last) {
      return semantics::visible_range<Int>(Int(r.context_len) + first, Int(r.context_len) + last, Int(window));
    });
  }
  std::int64_t tiles(const Request& r) const { return tiling<std::int64_t>().tiles(r.query_len); }
};

/// Parts of a tile in key order.
template <class Int>
std::vector<semantics::KeyRangeIn<Int>> parts_of_tile(const List& list, const Tile<Int>& tile, std::int32_t part_tiles) {
  const Cuts<Int> cuts = cuts_of(list.tiling<Int>(), tile, Int(list.split_keys), part_tiles);
  const std::int64_t first_cut = std::int64_t{cut_origin(tile.key_begin, Int(list.split_keys))} + cuts.keys;
  std::vector<semantics::KeyRangeIn<Int>> parts;
  for (Int part = 0; part < cuts.parts; ++part)
    parts.push_back(part_of<Int>({tile.key_begin, tile.key_end}, part, first_cut, cuts.keys));
  return parts;
}

/// Tiles of a request against the definition, and the parts of each.
template <class Int>
void expect_each_key_once(const List& list, const Request& r, std::int32_t part_tiles) {
  const std::int64_t rows = r.query_len * list.group;
  const bool taken = rows > list.min_rows && rows <= list.max_rows;
  const Int tiles = list.tiling<Int>().tiles(Int(r.query_len));
  ASSERT_EQ(tiles, taken ? semantics::ceil_div(rows, list.tile_rows) : 0);
  for (Int t = 0; t < tiles; ++t) {
    const Tile<Int> tile = list.tile<Int>(r, tiles - 1 - t);
    ASSERT_EQ(tile.row_begin, t * list.tile_rows);
    ASSERT_EQ(tile.row_end, std::min(rows, (t + 1) * list.tile_rows));
    const std::int64_t first = r.context_len + tile.row_begin / list.group,
                       last = r.context_len + (tile.row_end - 1) / list.group;
    const std::int64_t first_key = list.window > 0 ? std::max<std::int64_t>(0, first - list.window + 1) : 0;
    ASSERT_EQ(tile.key_begin, first_key / list.tile_keys * list.tile_keys);
    ASSERT_EQ(tile.key_end, last + 1);
    std::int64_t at = tile.key_begin;
    for (const auto& part : parts_of_tile(list, tile, part_tiles)) {
      ASSERT_EQ(part.begin, at) << "no key is left out, and none is in two parts";
      ASSERT_LT(part.begin, part.end);
      ASSERT_EQ(part.begin % list.tile_keys, 0);
      if (list.split_keys > 0) {
        ASSERT_TRUE(at == tile.key_begin || at % list.split_keys == 0);
        ASSERT_LE(part.end, (part.begin / list.split_keys + 1) * list.split_keys);
      } else {
        ASSERT_LE(semantics::ceil_div<std::int64_t>(part.end - part.begin, list.tile_keys), part_tiles);
      }
      at = part.end;
    }
    ASSERT_EQ(at, tile.key_end);
  }
}

/// Calls visit(list, request) for small shapes, primes among them.
template <typename Visit>
void for_small_cases(Visit&& visit) {
  for (const std::int64_t group : {1, 3, 4})
    for (const std::int64_t tile_rows : {1, 4, 7})
      for (const std::int64_t tile_keys : {1, 4, 5})
        for (const std::int64_t split : {0, 1, 3})
          for (const std::int64_t window : {0, 1, 6, 13})
            for (const std::int64_t query_len : {0, 1, 2, 5, 9})
              for (std::int64_t context_len = 0; context_len <= 23; ++context_len)
                visit(List{.group = group,
                           .tile_rows = tile_rows,
                           .tile_keys = tile_keys,
                           .window = window,
                           .split_keys = split * tile_keys},
                      Request{query_len, context_len});
}

TEST(Cuts, EveryKeyOnce) {
  for_small_cases([](const List& list, const Request& r) {
    for (const std::int32_t part_tiles : {1, 2, 3, kUncut}) {
      expect_each_key_once<std::int32_t>(list, r, part_tiles);
      expect_each_key_once<std::int64_t>(list, r, part_tiles);
    }
  });
}

TEST(Cuts, ARequestBelongsToTheListsThatTakeIt) {
  for (std::int64_t min = 0; min <= 9; ++min)
    for (std::int64_t max = min; max <= 12; ++max)
      for (std::int64_t query_len = 0; query_len <= 8; ++query_len)
        expect_each_key_once<std::int32_t>(List{.group = 2, .tile_rows = 3, .min_rows = min, .max_rows = max}, {query_len, 5}, 2);
}

/// Whether each part of a tile stays if the keys [begin, end) are a gap.
std::vector<bool> stays(const List& list, const Tile<std::int64_t>& tile, std::int64_t begin, std::int64_t end) {
  std::vector<bool> kept;
  for (const auto& part : parts_of_tile(list, tile, kUncut)) kept.push_back(part.begin < begin || part.end > end);
  if (std::find(kept.begin(), kept.end(), true) == kept.end()) kept.back() = true;
  return kept;
}

TEST(Cuts, PartsInAGapAreLeftOutAndOneStays) {
  for (const std::int64_t far : {std::int64_t{0}, std::int64_t{std::numeric_limits<std::int32_t>::max()} - 24})
    for (std::int64_t split = 1; split <= 5; ++split)
      for (std::int64_t first = 0; first <= 7; ++first)
        for (std::int64_t last = first + 1; last <= 17; ++last)
          for (std::int64_t begin = 0; begin <= 18; ++begin)
            for (std::int64_t end = begin + 1; end <= 19; ++end) {
              const List list{.split_keys = split};
              const std::vector<bool> kept = stays(list, {0, 1, far + first, far + last}, far + begin, far + end);
              const auto gap =
                  parts_in_gap<std::int32_t>({std::int32_t(far + first), std::int32_t(far + last)}, std::int32_t(far + begin),
                                             std::int32_t(far + end), std::int32_t(split));
              for (std::int32_t part = 0; part < std::int32_t(kept.size()); ++part)
                ASSERT_EQ(part < gap.begin || part >= gap.end, kept[std::size_t(part)])
                    << first << " " << last << " part " << part;
              ASSERT_LE(gap.begin, gap.end);
              ASSERT_LE(gap.end, std::int32_t(kept.size()));
            }
}

TEST(Cuts, PartsOfOneTileAreAsEqualAsTilesAllow) {
  for (std::int32_t key_tiles = 1; key_tiles <= 60; ++key_tiles)
    for (std::int32_t part_tiles = 1; part_tiles <= 61; ++part_tiles) {
      const List list{.tile_keys = 4};
      const auto parts = parts_of_tile<std::int32_t>(list, {0, 1, 0, key_tiles * 4}, part_tiles);
      ASSERT_LE(static_cast<std::int64_t>(parts.size()), semantics::ceil_div(key_tiles, part_tiles))
          << "no more parts than were asked for";
      for (std::size_t p = 1; p + 1 < parts.size(); ++p) ASSERT_EQ(parts[p].end - parts[p].begin, parts[0].end - parts[0].begin);
    }
}

TEST(Cuts, TheBoundOfKeyTilesIsNeverBelowTheirNumber) {
  for_small_cases([](const List& list, const Request& r) {
    const auto tiling = list.tiling<std::int32_t>();
    std::int64_t sum = 0;
    for (std::int32_t t = 0; t < list.tiles(r); ++t) sum += tiling.key_tiles(list.tile<std::int32_t>(r, t));
    const std::int64_t seq_len = r.query_len + r.context_len;
    ASSERT_GE(tiling.most_key_tiles(list.tiles(r), r.context_len, seq_len, list.window, false), sum);
    ASSERT_GE(tiling.most_key_tiles(list.tiles(r), r.context_len, seq_len, list.window, true), sum);
  });
}

TEST(Cuts, NumbersNearTheEndOf32Bits) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t window : {std::int64_t{0}, std::int64_t{1}, kMost / 2, kMost})
    for (const std::int64_t seq_len : {kMost, kMost - 1, kMost - 63, kMost - 64, kMost / 2})
      for (const std::int64_t split : {0, 1 << 20, 1 << 30})
        for (const std::int32_t part_tiles : {1 << 14, 1 << 24, kUncut}) {
          const List list{.tile_rows = 16, .tile_keys = 64, .window = window, .split_keys = split};
          expect_each_key_once<std::int32_t>(list, {1, seq_len - 1}, part_tiles);
          expect_each_key_once<std::int64_t>(list, {1, seq_len - 1}, part_tiles);
        }
}

TEST(Cuts, TriedPartSizesGrowToTwiceTheFirst) {
  for (std::int32_t first : {4, 5, 1009, kUncut / 2}) {
    EXPECT_EQ(tried_part_tiles(first, 0), first);
    EXPECT_EQ(tried_part_tiles(first, kPartSizes - 1), 2 * first);
    for (int few = 0; few <= kPartSizes; ++few)
      EXPECT_EQ(chosen_part_tiles(first, [&](int i) { return i >= few; }),
                few == kPartSizes ? first : tried_part_tiles(first, few));
  }
  EXPECT_EQ(first_part_tiles(1, 1, 0), kUncut) << "no items are wanted";
  EXPECT_EQ(first_part_tiles(1, 1, 132), kMinPartTiles);
  EXPECT_EQ(first_part_tiles(1000, 8, 80), 100);
  EXPECT_EQ(first_part_tiles(1001, 8, 80), 101);
  EXPECT_EQ(first_part_tiles(std::int64_t{1} << 40, 1, 1), kUncut);
}

// --- capacities ---

/// What the tiles of a batch take of a list's room.
Capacities taken(const List& list, const std::vector<Request>& batch, std::int32_t part_tiles) {
  Capacities sum;
  for (const Request& r : batch)
    for (std::int32_t t = 0; t < list.tiles(r); ++t) {
      const auto parts = static_cast<std::int64_t>(parts_of_tile(list, list.tile<std::int32_t>(r, t), part_tiles).size());
      sum.slices += parts;
      if (parts == 1) continue;
      sum.merges += 1;
      sum.partials += parts * list.num_kv_heads;
    }
  return sum;
}

bool fit(const Capacities& taken, const Capacities& room) {
  return taken.slices <= room.slices && taken.merges <= room.merges && taken.partials <= room.partials;
}

/// Calls visit(batch) for all batches of up to `reqs` requests with `tokens` tokens in all and sequences of up to `keys` keys.
template <typename Visit>
void for_all_batches(int reqs, std::int64_t tokens, std::int64_t keys, Visit&& visit, std::vector<Request> batch = {}) {
  visit(batch);
  if (reqs == 0) return;
  for (std::int64_t query_len = 0; query_len <= tokens; ++query_len)
    for (std::int64_t context_len = batch.empty() ? 0 : batch.back().context_len; context_len + query_len <= keys;
         context_len += 3) {
      batch.push_back({query_len, context_len});
      for_all_batches(reqs - 1, tokens - query_len, keys, visit, batch);
      batch.pop_back();
    }
}

TEST(Capacities, OfPartsOfFixedSizeAreJustEnough) {
  constexpr std::int64_t kReqs = 3, kTokens = 5, kKeys = 17;
  for (const std::int64_t window : {0, 3, 9}) {
    const List list{.group = 2, .tile_rows = 4, .tile_keys = 2, .window = window, .split_keys = 4, .num_kv_heads = 2};
    const std::int64_t tiles = most_tiles(kTokens * list.group, list.tile_rows, std::min(kReqs, kTokens));
    const std::int64_t parts =
        window > 0 ? most_parts(kKeys, list.split_keys, window, 0, list.tile_rows) : most_parts(kKeys, list.split_keys);
    const Capacities room = capacities_of_split(tiles, parts, list.num_kv_heads);
    Capacities most;
    std::int64_t most_of_tile = 0;
    for_all_batches(kReqs, kTokens, kKeys, [&](const std::vector<Request>& batch) {
      const Capacities all = taken(list, batch, kUncut);
      ASSERT_TRUE(fit(all, room));
      most = {std::max(most.slices, all.slices), std::max(most.merges, all.merges), std::max(most.partials, all.partials)};
      for (const Request& r : batch)
        for (std::int32_t t = 0; t < list.tiles(r); ++t)
          most_of_tile =
              std::max<std::int64_t>(most_of_tile, std::int64_t(parts_of_tile(list, list.tile<std::int32_t>(r, t), 1).size()));
    });
    EXPECT_EQ(most.merges, tiles - 1) << "the bound counts a tile too many: here 10 rows in three requests are never in 5 tiles";
    EXPECT_LE(parts - most_of_tile, window > 0 ? 1 : 0) << "window " << window;
  }
}

/// Keys of a table, and this step's, wherever they lie behind.
TEST(Capacities, KeysInTwoPlacesTouchTwoPartsMoreAtMost) {
  for (std::int64_t split = 1; split <= 5; ++split) {
    std::int64_t most_more = 0;
    for (std::int64_t cached = 0; cached <= 12; ++cached)
      for (std::int64_t fresh = 1; fresh <= 9; ++fresh)
        for (std::int64_t at = cached; at <= cached + 3 * split; ++at) {
          const std::vector<bool> kept = stays(List{.split_keys = split}, {0, 1, 0, at + fresh}, cached, at);
          const std::int64_t parts = std::count(kept.begin(), kept.end(), true);
          ASSERT_LE(parts, most_parts(cached + fresh + 2 * split, split));
          most_more = std::max(most_more, parts - most_parts(cached + fresh, split));
        }
    EXPECT_EQ(most_more, std::min<std::int64_t>(split - 1, 2)) << "no room is idle, split " << split;
  }
}

/// One part is counted too many where split_keys divides the window and the rows before the last.
TEST(Capacities, AWindowTouchesTheCountedPartsOrOneLess) {
  constexpr std::int64_t kKeys = 40;
  for (std::int64_t window = 1; window <= 12; ++window)
    for (std::int64_t split = 1; split <= 6; ++split)
      for (std::int64_t tile_rows = 2; tile_rows <= 5; ++tile_rows) {
        const List list{.tile_rows = tile_rows, .window = window, .split_keys = split};
        std::int64_t most = 0;
        for (std::int64_t context_len = 0; context_len + tile_rows <= kKeys; ++context_len) {
          const auto tile = list.tile<std::int32_t>({tile_rows, context_len}, 0);
          most = std::max(most, static_cast<std::int64_t>(parts_of_tile(list, tile, kUncut).size()));
        }
        const std::int64_t counted = most_parts(kKeys, split, window, 0, tile_rows);
        const bool divides = (window + tile_rows - 2) % split == 0 && counted < most_parts(kKeys, split);
        ASSERT_EQ(most, divides ? counted - 1 : counted) << window << " " << split << " " << tile_rows;
      }
}

TEST(Capacities, OfPartsThatTheDeviceChoosesHoldWithoutAnotherTry) {
  constexpr std::int64_t kReqs = 3, kTokens = 5, kKeys = 40;
  for (const std::int64_t target : {1, 2, 5, 12})
    for (const std::int64_t window : {0, 7}) {
      const List list{.group = 2, .tile_rows = 4, .tile_keys = 1, .window = window, .target_items = target, .num_kv_heads = 2};
      const Capacities room = capacities_of_target(most_tiles(kTokens * list.group, list.tile_rows, std::min(kReqs, kTokens)),
                                                   target, list.num_kv_heads);
      for_all_batches(kReqs, kTokens, kKeys, [&](const std::vector<Request>& batch) {
        std::int64_t key_tiles = 0;
        for (const Request& r : batch)
          if (list.tiles(r) > 0)
            key_tiles += list.tiling<std::int32_t>().most_key_tiles(list.tiles(r), r.context_len, r.query_len + r.context_len,
                                                                    window, false);
        const std::int32_t first = first_part_tiles(key_tiles, list.num_kv_heads, target);
        for (int i = 0; i < kPartSizes; ++i) ASSERT_TRUE(fit(taken(list, batch, tried_part_tiles(first, i)), room));
      });
    }
}

}  // namespace
}  // namespace quire::schedule
