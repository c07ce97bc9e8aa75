// SPDX-License-Identifier: Apache-2.0
// schedule() on the stand-in: every visible key of every row exactly once, parts at absolute cuts, room respected, equal to what
// a few lines of host code say.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "backend/gpu/schedule.h"
#include "simt/device.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

struct Lens {
  std::int64_t query_len, context_len;
};

/// Lengths alone, with what schedule() reads of a call.
struct Scheduled {
  Scheduled(const std::vector<Lens>& lens, std::int32_t group, std::int32_t window, std::int32_t split_keys,
            std::int32_t target_items, std::int32_t max_slices) {
    starts.push_back(0);
    for (const Lens& n : lens) {
      starts.push_back(starts.back() + n.query_len);
      seq_lens.push_back(n.query_len + n.context_len);
    }
    args.num_reqs = static_cast<std::int32_t>(lens.size());
    args.num_tokens = static_cast<std::int32_t>(starts.back());
    args.num_kv_heads = 3;
    args.group = group;
    args.window = window;
    args.query_start_loc = {starts.data(), DType::i64, 1};
    args.seq_lens = {seq_lens.data(), DType::i64, 1};
    args.outcome = &outcome;
    memory.emplace(args, max_slices, split_keys, target_items);
    args.work = memory->work;
  }
  void run() {
    EXPECT_EQ(simt::run({.blocks = 1, .threads = gpu::kScheduleThreads, .shared_bytes = gpu::kScheduleSharedBytes, .seed = 2},
                        [&] { gpu::schedule(args, gpu::SharedArea()); }),
              "");
  }
  std::vector<gpu::WorkSlice> slices() const {
    return {memory->slices.begin(), memory->slices.begin() + *memory->work.num_slices};
  }

  std::vector<std::int64_t> starts, seq_lens;
  gpu::Outcome outcome;
  gpu::AttendArgs args;
  std::optional<simt::WorkMemory> memory;
};

/// Findings of a list against the definition of tiles and parts.
void expect_whole(const Scheduled& s, const std::vector<Lens>& lens) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<gpu::WorkSlice>> tiles;
  for (const gpu::WorkSlice& slice : s.slices()) tiles[{slice.req, slice.row_begin}].push_back(slice);
  std::size_t expected_tiles = 0;
  std::set<std::int32_t> merges, partials;
  for (std::size_t r = 0; r < lens.size(); ++r) {
    const std::int64_t rows = lens[r].query_len * s.args.group;
    if (rows <= s.args.work.min_rows || rows > s.args.work.max_rows) continue;
    for (std::int64_t begin = 0; begin < rows; begin += gpu::kGenericTileRows, ++expected_tiles) {
      const auto& parts = tiles[{static_cast<std::int32_t>(r), static_cast<std::int32_t>(begin)}];
      ASSERT_FALSE(parts.empty()) << "request " << r << " row " << begin;
      const std::int64_t end = std::min<std::int64_t>(rows, begin + gpu::kGenericTileRows);
      const std::int64_t last_pos = lens[r].context_len + (end - 1) / s.args.group;
      const std::int64_t first_pos = lens[r].context_len + begin / s.args.group;
      const std::int64_t first_key = s.args.window > 0 ? std::max<std::int64_t>(0, first_pos - s.args.window + 1) : 0;
      EXPECT_EQ(parts.front().key_begin, first_key / 64 * 64);
      EXPECT_EQ(parts.back().key_end, last_pos + 1);
      for (std::size_t p = 0; p < parts.size(); ++p) {
        EXPECT_EQ(parts[p].row_end, end);
        EXPECT_EQ(parts[p].part, static_cast<std::int32_t>(p));
        EXPECT_EQ(parts[p].num_parts, static_cast<std::int32_t>(parts.size()));
        EXPECT_LT(parts[p].key_begin, parts[p].key_end);
        if (p == 0) continue;
        EXPECT_EQ(parts[p].key_begin, parts[p - 1].key_end);
        EXPECT_EQ(parts[p].key_begin % 64, 0);
        if (s.args.work.split_keys > 0) {
          EXPECT_EQ(parts[p].key_begin % s.args.work.split_keys, 0);
          EXPECT_LE(parts[p].key_end - parts[p].key_begin, s.args.work.split_keys);
        }
      }
      if (parts.size() == 1) continue;
      EXPECT_TRUE(merges.insert(parts[0].merge).second);
      for (int h = 0; h < 3; ++h) EXPECT_EQ(s.memory->parts_done[static_cast<std::size_t>(parts[0].merge * 3 + h)], 0);
      for (int i = 0; i < 3 * parts[0].num_parts; ++i) EXPECT_TRUE(partials.insert(parts[0].first_partial + i).second);
    }
  }
  EXPECT_EQ(tiles.size(), expected_tiles);
  EXPECT_TRUE(merges.empty() || (*merges.begin() >= 0 && *merges.rbegin() < s.args.work.max_merges));
  EXPECT_TRUE(partials.empty() || (*partials.begin() >= 0 && *partials.rbegin() < s.args.work.max_partials));
  EXPECT_EQ(*s.memory->work.next_item, 0);
  EXPECT_EQ(s.outcome.broken, 0);
}

TEST(SimtSchedule, EveryKeyOnceForRandomLengths) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 60; ++i) {
    std::vector<Lens> lens(random() % 9);
    if (i % 20 == 7) lens.resize(700);
    for (Lens& n : lens)
      n = {static_cast<std::int64_t>(random() % 3 == 0 ? random() % 200 : random() % 3),
           static_cast<std::int64_t>(random() % 2 == 0 ? random() % 3000 : random() % 60)};
    const auto group = static_cast<std::int32_t>(1 + random() % 5);
    const std::int32_t window = random() % 3 == 0 ? static_cast<std::int32_t>(1 + random() % 300) : 0;
    const std::int32_t split = random() % 2 == 0 ? 128 : 0;
    Scheduled s(lens, group, window, split, static_cast<std::int32_t>(random() % 200), 40000);
    if (i % 3 == 1) s.args.work.min_rows = 16;
    if (i % 3 == 2) s.args.work.max_rows = 16;
    s.run();
    expect_whole(s, lens);
  }
}

TEST(SimtSchedule, LongKeysAreSplitUntilTheDeviceIsFull) {
  Scheduled s({{1, 16383}}, 4, 0, 0, 96, 1000);
  s.run();
  const auto items = s.slices().size() * 3;
  EXPECT_GE(items, 96u * 9 / 10);
  EXPECT_LE(items, 96u);
}

// Blocks that draw a second item while others have none would double the time.
TEST(SimtSchedule, EqualPartsAndNoMoreItemsThanAreWanted) {
  for (const std::int32_t wanted : {264, 132, 100}) {
    Scheduled s(std::vector<Lens>(8, {1, 32767}), 4, 0, 0, wanted, 1000);
    s.run();
    const std::vector<gpu::WorkSlice> slices = s.slices();
    EXPECT_LE(slices.size() * 3, static_cast<std::size_t>(wanted));
    EXPECT_GE(slices.size() * 3, static_cast<std::size_t>(wanted) * 7 / 10);
    for (const gpu::WorkSlice& slice : slices)
      EXPECT_NEAR(slice.key_end - slice.key_begin, 32768.0 / slice.num_parts, 64.0 * slice.num_parts);
  }
}

TEST(SimtSchedule, LargerPartsWhereRoomIsShort) {
  const std::vector<Lens> lens = {{1, 9000}, {1, 5000}, {1, 40}};
  Scheduled s(lens, 4, 0, 0, 1000, 7);
  s.run();
  expect_whole(s, lens);
  EXPECT_LE(s.slices().size(), 7u);
  EXPECT_GT(s.slices().size(), 3u) << "split as far as there is room";
}

/// Key tiles under all rows of the list's own tiles, and of the requests of fewer rows.
std::pair<std::int64_t, std::int64_t> long_and_short_tiles(const Scheduled& s, const std::vector<Lens>& lens) {
  std::int64_t of_long = 0, of_short = 0;
  for (const gpu::WorkSlice& slice : s.slices()) of_long += (slice.key_end - slice.key_begin - 1) / 64 + 1;
  for (const Lens& n : lens) {
    if (n.query_len == 0 || n.query_len * s.args.group > s.args.work.min_rows) continue;
    const std::int64_t first = s.args.window > 0 ? std::max<std::int64_t>(0, n.context_len - s.args.window + 1) : 0;
    of_short += (n.context_len + n.query_len - 1) / 64 - first / 64 + 1;
  }
  return {of_long, of_short};
}

TEST(SimtSchedule, SmsAreDividedByWork) {
  std::mt19937_64 random(9);
  const auto any = [&random](std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
  };
  for (int i = 0; i < 20; ++i) {
    const std::int32_t window = i % 3 == 2 ? 700 : 0;
    std::vector<Lens> lens;
    for (std::int64_t n = 1 + any(60); n > 0; --n) lens.push_back({any(3), 3000 + any(9000)});
    for (std::int64_t n = 1 + any(3); n > 0; --n) lens.push_back({200 + any(800), 2000 + any(9000)});
    std::shuffle(lens.begin(), lens.end(), random);
    Scheduled s(lens, 4, window, 0, 0, 40000);
    s.args.work.min_rows = 8;
    s.args.work.division.all_units = 132;
    s.args.work.division.long_weight = 7;
    s.run();
    const auto [of_long, of_short] = long_and_short_tiles(s, lens);
    ASSERT_GT(of_short, 0);
    const double wanted =
        132.0 * 7.0 * static_cast<double>(of_long) / (7.0 * static_cast<double>(of_long) + static_cast<double>(of_short));
    const std::int32_t units = *s.args.work.division.units;
    EXPECT_EQ(units % 2, 0);
    EXPECT_NEAR(units, std::clamp(wanted, 2.0, 130.0), 4.0) << "of_long " << of_long << " of_short " << of_short;
  }
}

// The host has counted the other call's tiles: the device takes its word.
TEST(SimtSchedule, GivenUnitsStand) {
  Scheduled s({{300, 9000}, {1, 70}}, 4, 0, 0, 0, 40000);
  s.args.work.min_rows = 8;
  s.args.work.division.all_units = 132;
  s.args.work.division.given_units = 38;
  s.run();
  EXPECT_EQ(*s.args.work.division.units, 38);
}

TEST(SimtSchedule, NoRoomBreaksTheCall) {
  for (const std::int32_t split : {0, 64}) {
    Scheduled s({{40, 100}, {1, 70}}, 4, 0, split, 0, 9);
    s.run();
    EXPECT_NE(s.outcome.broken, 0) << "11 tiles in room for 9";
    EXPECT_EQ(*s.memory->work.num_slices, 0);
  }
  Scheduled fixed({{1, 1000}}, 4, 0, 64, 0, 9);  // 16 parts of 64: coarser ones would change bits
  fixed.run();
  EXPECT_NE(fixed.outcome.broken, 0);
}

}  // namespace
}  // namespace quire::test
