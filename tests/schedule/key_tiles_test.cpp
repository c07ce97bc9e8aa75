// SPDX-License-Identifier: Apache-2.0
// Tiles of cached and fresh keys, as Hopper's prefill meets them: every key of every row in exactly one tile, of one place, in
// the order that the header promises. All small cases, and numbers near the ends of 32 bits.
#include "schedule/key_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "schedule/cuts.h"
#include "schedule/tiles.h"

namespace quire::schedule {
namespace {

/// Keys [key_begin, key_end) of a part of a tile, the first cached_len of the request in the cache.
struct Part {
  std::int64_t key_begin = 0, key_end = 0, cached_len = 0, tile_keys = 1;
  bool cached_first = false;
};

/// The part's keys, as a device has them.
template <class Int>
struct Keys {
  Int key_begin, key_end;
};

template <class Int>
std::vector<KeyTileSpan<Int>> spans_of(const Part& p) {
  const Keys<Int> keys{Int(p.key_begin), Int(p.key_end)};
  KeyTiles<Int> tiles;
  find_key_tiles(keys, Int(p.cached_len), Int(p.tile_keys), tiles);
  KeyTileOrder<Int> order;
  find_order(tiles, p.cached_first, order);
  std::vector<KeyTileSpan<Int>> spans;
  for (Int n = 0; n < tiles.count(); ++n) {
    spans.push_back(key_tile(tiles, order, keys, Int(p.tile_keys), n));
    EXPECT_EQ(spans.back().fresh, order.is_fresh(tiles, n)) << n;
  }
  return spans;
}

/// Keys of a tile.
template <class Int>
semantics::KeyRangeIn<std::int64_t> keys_of(const KeyTileSpan<Int>& span, std::int64_t tile_keys) {
  return {std::max<std::int64_t>(span.first, span.begin), std::min<std::int64_t>(std::int64_t{span.first} + tile_keys, span.end)};
}

/// Walks the tiles of a part from its last key to its first: the two places one after the other, without a gap.
template <class Int>
void expect_each_key_once(const Part& p) {
  std::vector<KeyTileSpan<Int>> spans = spans_of<Int>(p);
  const auto is_fresh = [](const KeyTileSpan<Int>& span) { return span.fresh; };
  const auto is_cached = [](const KeyTileSpan<Int>& span) { return !span.fresh; };
  ASSERT_TRUE(p.cached_first ? std::is_partitioned(spans.begin(), spans.end(), is_cached)
                             : std::is_partitioned(spans.begin(), spans.end(), is_fresh));
  std::stable_partition(spans.begin(), spans.end(), is_fresh);
  std::int64_t end = p.key_end;
  for (const KeyTileSpan<Int>& span : spans) {
    const auto keys = keys_of(span, p.tile_keys);
    ASSERT_LT(keys.begin, keys.end) << "no tile is empty";
    ASSERT_EQ(keys.end, end) << "no key is left out, and none is in two tiles";
    ASSERT_TRUE(span.fresh ? keys.begin >= p.cached_len : keys.end <= p.cached_len) << "a tile holds keys of one place";
    ASSERT_EQ((span.first - (span.fresh ? span.begin : 0)) % p.tile_keys, 0);
    end = keys.begin;
  }
  ASSERT_EQ(end, p.key_begin);
}

TEST(KeyTiles, EveryKeyOfAPartOnce) {
  for (const std::int64_t tile_keys : {1, 2, 5, 8})
    for (std::int64_t begin = 0; begin <= 12; ++begin)
      for (std::int64_t end = begin + 1; end <= 30; ++end)
        for (std::int64_t cached = 0; cached <= end + 2; ++cached)
          for (const bool cached_first : {false, true}) {
            expect_each_key_once<std::int32_t>({begin, end, cached, tile_keys, cached_first});
            expect_each_key_once<std::int64_t>({begin, end, cached, tile_keys, cached_first});
          }
}

TEST(KeyTiles, APartWithoutKeysHasNoTile) {
  for (const std::int64_t cached : {0, 4, 9}) EXPECT_TRUE(spans_of<std::int32_t>({7, 7, cached, 4}).empty());
}

TEST(KeyTiles, NumbersNearTheEndOf32Bits) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t back : {1, 64, 1000})
    for (const std::int64_t fresh : {0, 1, 63, 64, 65, 500})
      for (const std::int64_t less : {0, 1, 127})
        for (const bool cached_first : {false, true})
          expect_each_key_once<std::int32_t>({kMost - less - back, kMost - less, kMost - less - fresh, 128, cached_first});
}

/// Tiles of a part of which keys [gap.begin, gap.end) are seen by no row.
std::vector<KeyTileSpan<std::int32_t>> spans_beside(const Part& p, const semantics::KeyRangeIn<std::int32_t>& gap) {
  using Int = std::int32_t;
  const Keys<Int> keys{Int(p.key_begin), Int(p.key_end)};
  KeyTiles<Int> tiles;
  TileGaps<Int> gaps;
  KeyTileOrder<Int> order;
  find_key_tiles(keys, Int(p.cached_len), Int(p.tile_keys), tiles);
  skip_gap(keys, gap.begin, gap.end, Int(p.tile_keys), tiles, gaps);
  find_order(tiles, p.cached_first, order);
  std::vector<KeyTileSpan<Int>> spans;
  for (Int n = 0; n < tiles.count(); ++n) spans.push_back(key_tile(tiles, order, gaps, keys, Int(p.tile_keys), n));
  return spans;
}

void expect_gap_skipped(const Part& p, const semantics::KeyRangeIn<std::int32_t>& gap) {
  std::vector<int> met(std::size_t(p.key_end));
  for (const auto& span : spans_beside(p, gap)) {
    const auto keys = keys_of(span, p.tile_keys);
    ASSERT_LT(keys.begin, keys.end);
    ASSERT_FALSE(keys.begin >= gap.begin && keys.end <= gap.end) << "a tile that no row sees";
    ASSERT_TRUE(span.fresh ? keys.begin >= p.cached_len : keys.end <= p.cached_len);
    for (std::int64_t key = keys.begin; key < keys.end; ++key) ++met[std::size_t(key)];
  }
  for (std::int64_t key = p.key_begin; key < p.key_end; ++key)
    ASSERT_TRUE(met[std::size_t(key)] == 1 || (met[std::size_t(key)] == 0 && key >= gap.begin && key < gap.end))
        << "key " << key << " of [" << p.key_begin << ", " << p.key_end << "), " << p.cached_len << " cached, tiles of "
        << p.tile_keys << ", gap [" << gap.begin << ", " << gap.end << ")";
}

TEST(KeyTiles, TilesInAGapAreSkippedAndNoOthers) {
  for (const std::int64_t tile_keys : {1, 3, 4})
    for (std::int64_t begin = 0; begin <= 5; ++begin)
      for (std::int64_t end = begin; end <= 17; ++end)
        for (std::int64_t cached = 0; cached <= end + 1; ++cached)
          for (std::int32_t gap_begin = 0; gap_begin <= 17; ++gap_begin)
            for (std::int32_t gap_end = gap_begin > 2 ? gap_begin - 2 : 0; gap_end <= 18; ++gap_end)
              for (const bool cached_first : {false, true}) {
                expect_gap_skipped({begin, end, cached, tile_keys, cached_first}, {gap_begin, gap_end});
                if (testing::Test::HasFatalFailure()) return;  // the first of millions says it all
              }
}

/// How often each key of each row of a request is met, by all parts of all tiles of rows together: as prepare cuts a list, and a
/// prefill block walks its items.
std::vector<std::vector<int>> meetings(const Tiling<std::int32_t>& tiling, std::int32_t query_len, std::int32_t context_len,
                                       std::int32_t window, std::int32_t cached_len, std::int32_t part_tiles) {
  const auto seen = [&](std::int32_t first, std::int32_t last) {
    return semantics::visible_range<std::int32_t>(context_len + first, context_len + last, window);
  };
  std::vector<std::vector<int>> met(std::size_t(query_len * tiling.group),
                                    std::vector<int>(std::size_t(context_len + query_len)));
  for (std::int32_t t = 0; t < tiling.tiles(query_len); ++t) {
    const Tile<std::int32_t> tile = tiling.tile(query_len, t, seen);
    const Cuts<std::int32_t> cuts = cuts_of(tiling, tile, 0, part_tiles);
    for (std::int32_t part = 0; part < cuts.parts; ++part) {
      auto keys = part_of<std::int32_t>({tile.key_begin, tile.key_end}, part, tile.key_begin + cuts.keys, cuts.keys);
      const std::int32_t first_row = tile.row_begin / tiling.group;
      keys.begin = std::max<std::int32_t>(keys.begin, static_cast<std::int32_t>(seen(first_row, first_row).begin));
      const Part p{keys.begin, keys.end, cached_len, tiling.tile_keys};
      for (const auto& span : spans_of<std::int32_t>(p))
        for (std::int64_t key = keys_of(span, p.tile_keys).begin; key < keys_of(span, p.tile_keys).end; ++key)
          for (std::int32_t row = tile.row_begin; row < tile.row_end; ++row) ++met[std::size_t(row)][std::size_t(key)];
    }
  }
  return met;
}

TEST(KeyTiles, EveryKeyThatARowSeesOnce) {
  for (const std::int32_t group : {1, 3})
    for (const std::int32_t tile_keys : {2, 4})
      for (const std::int32_t window : {0, 1, 6})
        for (const std::int32_t query_len : {1, 2, 7})
          for (const std::int32_t context_len : {0, 1, 5, 17})
            for (std::int32_t cached_len = context_len; cached_len <= context_len + query_len; ++cached_len)
              for (const std::int32_t part_tiles : {1, 2, 100}) {
                const Tiling<std::int32_t> tiling{group, 2 * group, tile_keys, 0, 1 << 20};
                const auto met = meetings(tiling, query_len, context_len, window, cached_len, part_tiles);
                for (std::size_t row = 0; row < met.size(); ++row) {
                  const auto position = context_len + std::int32_t(row) / group;
                  const auto sees = semantics::visible_range<std::int32_t>(position, position, window);
                  for (std::int32_t key = 0; key < context_len + query_len; ++key)
                    ASSERT_TRUE(met[row][std::size_t(key)] == 1 ||
                                (met[row][std::size_t(key)] == 0 && (key < sees.begin || key >= sees.end)))
                        << "row " << row << ", key " << key;
                }
              }
}

}  // namespace
}  // namespace quire::schedule
