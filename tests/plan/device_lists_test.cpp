// SPDX-License-Identifier: Apache-2.0
// GPU plans: bounds, capacities and the workspace, for batches whose lengths planning does not read. tests/simt/plan_test.cpp
// runs the device's own planning within them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "plan/device_lists.h"
#include "plan/device_workspace.h"
#include "plan/fits.h"
#include "quire/attention.hpp"
#include "quire/plan.hpp"
#include "quire/tools/capture.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

using plan_detail::DeviceList;
using plan_detail::Role;
using ::testing::HasSubstr;

Problem some_problem(std::mt19937& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  Problem p;
  p.num_kv_heads = pick(1, 9);
  p.num_q_heads = p.num_kv_heads * pick(1, 20);
  p.head_dim = pick(1, 256);
  for (std::int64_t r = pick(0, 40); r > 0; --r) {
    const std::int64_t query_len = pick(0, 1) != 0 ? 1 : pick(0, 300),
                       context_len = pick(0, 1) != 0 ? pick(0, 20) : pick(0, 90000);
    p.reqs.push_back({query_len, context_len, context_len + query_len});
  }
  if (pick(0, 1) != 0) p.sliding_window = pick(1, 5000);
  return p;
}

/// Tiles by definition, request by request; with their keys.
struct Tile {
  std::int64_t begin, end;
};
std::vector<Tile> tiles_of(const Problem& p, std::int64_t tile_rows) {
  std::vector<Tile> tiles;
  for (const Request& r : p.reqs) {
    const std::int64_t rows = r.query_len * p.group();
    for (std::int64_t row = 0; row < rows; row += tile_rows) {
      const std::int64_t first = r.context_len + row / p.group();
      const std::int64_t last = r.context_len + (std::min(rows, row + tile_rows) - 1) / p.group();
      tiles.push_back({p.sliding_window ? std::max<std::int64_t>(0, first - *p.sliding_window + 1) : 0, last + 1});
    }
  }
  return tiles;
}

struct Counts {
  std::int64_t slices = 0, merges = 0, partials = 0;
};
/// Cut at multiples of `part` counted from key 0, or into equal parts of at most that.
Counts counts_of(const std::vector<Tile>& tiles, std::int64_t part, std::int64_t kv_heads, bool from_key_0) {
  Counts c;
  for (const Tile& t : tiles) {
    const std::int64_t parts = from_key_0 ? (t.end - 1) / part - t.begin / part + 1 : (t.end - t.begin - 1) / part + 1;
    c.slices += parts;
    c.merges += parts > 1 ? 1 : 0;
    c.partials += parts > 1 ? parts * kv_heads : 0;
  }
  return c;
}

bool fits(const DeviceList& list, const Counts& c) {
  return c.slices <= list.max_slices && c.merges <= list.max_merges && c.partials <= list.max_partials;
}

TEST(DeviceLists, CapacitiesHoldForThePartSizeOfTheProof) {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    const Problem p = some_problem(random);
    const Plan plan = quire::plan(p, find_device(round % 2 != 0 ? "sm90" : "sm80").value()).value();
    const DeviceList& list = plan.work().lists.at(0);
    const std::vector<Tile> tiles = tiles_of(p, list.tile_rows);
    std::int64_t keys = 0;
    for (const Tile& t : tiles) keys += t.end - t.begin;
    const std::int64_t parts_wanted = (list.target_items + p.num_kv_heads - 1) / p.num_kv_heads;
    const std::int64_t part = std::max<std::int64_t>(1, (keys + parts_wanted - 1) / parts_wanted);
    EXPECT_TRUE(fits(list, counts_of(tiles, part, p.num_kv_heads, false))) << to_string(p);
    EXPECT_LE(static_cast<std::int64_t>(tiles.size()), list.max_slices) << to_string(p);
  }
}

TEST(DeviceLists, CapacitiesHoldForFixedParts) {
  std::mt19937 random(12);
  std::int64_t split = 0;
  for (int round = 0; round < 400; ++round) {
    const Problem p = some_problem(random);
    const Plan plan = quire::plan(p, find_device("sm90").value(), {.batch_invariant = true}).value();
    const DeviceList& list = plan.work().lists.at(0);
    ASSERT_GT(list.split_keys, 0);
    const Counts c = counts_of(tiles_of(p, list.tile_rows), list.split_keys, p.num_kv_heads, /*from_key_0=*/true);
    EXPECT_LE(c.slices, list.max_slices) << to_string(p);
    EXPECT_LE(c.merges, list.max_merges) << to_string(p);
    EXPECT_LE(c.partials, list.max_partials) << to_string(p);
    split += c.merges;
  }
  EXPECT_GT(split, 1000) << "the problems must be long enough to be split";
}

TEST(DeviceLists, TheWorkspaceHoldsItsPiecesApart) {
  std::mt19937 random(13);
  for (int round = 0; round < 100; ++round) {
    const Plan plan = quire::plan(some_problem(random), find_device("sm90").value()).value();
    const plan_detail::DeviceWorkspace w = plan_detail::device_workspace(plan);
    const DeviceList& list = plan.work().lists[0];
    const std::int64_t kv_heads = plan.problem.num_kv_heads;
    const std::vector<std::pair<std::int64_t, std::int64_t>> pieces = {
        {0, plan_detail::kCallStateBytes},
        {w.lists[0].parts_done, list.max_merges * kv_heads * 4},
        {w.lists[0].num_slices, 4},
        {w.lists[0].next_item, 4},
        {w.lists[0].slices, list.max_slices * plan_detail::kSliceBytes},
        {w.lists[0].partial_states, list.max_partials * list.tile_rows * 8},
        {w.lists[0].partial_acc, list.max_partials * list.tile_rows * plan.problem.head_dim * 4}};
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) EXPECT_LE(pieces[i].first + pieces[i].second, pieces[i + 1].first);
    EXPECT_LE(pieces.back().first + pieces.back().second, w.bytes);
    EXPECT_LE(w.lists[0].parts_done + list.max_merges * kv_heads * 4, w.reset_bytes);
    EXPECT_GE(w.lists[0].num_slices, w.reset_bytes);
    EXPECT_EQ(workspace_bytes(plan), static_cast<std::size_t>(w.bytes));
  }
}

// cuda_sm90's long rows go to a kernel of its own unless something asks for exact weights or the same bits everywhere.
TEST(DeviceLists, PrefillOnHopperRoundsWeightsUnlessToldNotTo) {
  const Device sm90 = find_device("sm90").value();
  const auto planned = [&](const char* line, const PlanSettings& settings = {}) {
    return plan(parse_problem_line(line)->problem, sm90, settings).value();
  };
  const Plan p = planned("q=bf16 kv=bf16 heads=12:4 d=128 page=16 reqs=100@5,3x1@99");
  ASSERT_EQ(p.kernel, "cuda_sm90");
  ASSERT_EQ(p.work().lists.size(), 2u);
  EXPECT_EQ(p.work().lists[1].tile_rows, 252) << "whole groups of 3, 126 rows for each block of a pair";
  EXPECT_EQ(p.work().lists[1].num_blocks % 2, 0);
  EXPECT_TRUE(rounds_weights(p, 100));
  EXPECT_TRUE(rounds_weights(p, 3)) << "9 score rows";
  EXPECT_FALSE(rounds_weights(p, 2)) << "6 score rows: decode";
  EXPECT_TRUE(rounds_weights(planned("q=bf16 kv=fp8_e5m2 heads=12:4 d=128 page=16 kscale=head reqs=100@5"), 100));
  EXPECT_TRUE(rounds_weights(planned("q=bf16 kv=bf16 heads=12:4 d=128 page=16 kscale=head vscale=tensor reqs=100@5"), 100));
  for (const Plan& exact : {planned("q=bf16 kv=bf16 heads=12:4 d=128 page=16 reqs=100@5", {.exact_weights = true}),
                            planned("q=bf16 kv=bf16 heads=12:4 d=128 page=16 reqs=100@5", {.batch_invariant = true}),
                            planned("q=bf16 kv=fp8_e4m3fn heads=12:4 d=128 page=16 reqs=100@5", {.exact_weights = true}),
                            planned("q=bf16 kv=fp8_e4m3fnuz heads=12:4 d=128 page=16 reqs=100@5"),
                            planned("q=bf16 kv=bf16 heads=12:4 d=96 page=16 reqs=100@5")}) {
    EXPECT_FALSE(rounds_weights(exact, 100)) << to_string(exact);
    for (const DeviceList& list : exact.work().lists) EXPECT_LE(list.tile_rows, 64);
  }
}

// Long calls with rows of both kinds serve both lists at the same time; the others gain nothing by it.
TEST(DeviceLists, DecodeBesidePrefillWhereThereIsEnoughOfBoth) {
  const Device sm90 = find_device("sm90").value();
  const auto is_beside = [&](const char* line, const PlanSettings& settings = {}) {
    const Plan p = plan(parse_problem_line(line)->problem, sm90, settings).value();
    EXPECT_FALSE(p.work().lists[0].beside) << line;
    return p.work().lists.size() == 2 && p.work().lists[1].beside;
  };
  EXPECT_TRUE(is_beside("q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191,2048@6144"));
  EXPECT_TRUE(is_beside("q=f16 kv=f16 heads=16:2 d=256 page=16 reqs=64x1@8191,2048@6144"));
  EXPECT_FALSE(is_beside("q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=32x1@1000,256@256")) << "short";
  EXPECT_FALSE(is_beside("q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191")) << "decode alone";
  EXPECT_FALSE(is_beside("q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=64x1@8191,2048@6144")) << "fp8";
  EXPECT_FALSE(is_beside("q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191,2048@6144", {.exact_weights = true}));
  EXPECT_FALSE(is_beside("q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191,2048@6144", {.kernel = "cuda_mma"}));
}

// A caller that gives no query lengths has decode steps most of the time, so these are not divided; larger batches are.
TEST(DeviceLists, DecodeIsNotDividedForRequestsThatMayNotBeThere) {
  const Device sm90 = find_device("sm90").value();
  const auto is_beside = [&](std::int64_t tokens, std::int64_t max_query_len) {
    Problem p = parse_problem_line("q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191")->problem;
    Plan unread = plan(p, sm90).value();
    unread.assumptions = {"lengths were not read"};
    unread.bounds.num_tokens = tokens;
    unread.bounds.query_len_from_shapes = max_query_len == 0;
    unread.bounds.max_query_len = max_query_len == 0 ? tokens : max_query_len;
    EXPECT_TRUE(plan_detail::size_lists(unread).ok());
    return unread.work().lists.size() == 2 && unread.work().lists[1].beside;
  };
  EXPECT_FALSE(is_beside(64, 0)) << "a row each";
  EXPECT_FALSE(is_beside(128, 0)) << "two rows each still fit a tile of decode";
  EXPECT_TRUE(is_beside(129, 0)) << "somebody has more";
  EXPECT_TRUE(is_beside(64, 33)) << "the caller says that somebody may have";
}

// A request without rows makes the longest request's length that of the batch. A soak on an H200 found such rows in prefill,
// which rounds their weights: the plan had taken a length that the caller said for a guess.
TEST(DeviceLists, ALengthThatTheCallerSaysIsNoGuess) {
  const Problem p = parse_problem_line("q=f16 heads=2:1 d=64 page=8 reqs=1x0,1x5")->problem;
  Plan plan_of_unread = plan(p, find_device("sm90").value()).value();
  ASSERT_EQ(plan_of_unread.work().lists.size(), 1u) << "wide tiles of decode alone";
  plan_of_unread.assumptions = {"query_len <= 5 (PlanSettings)"};
  ASSERT_TRUE(plan_detail::size_lists(plan_of_unread).ok());
  EXPECT_EQ(plan_of_unread.work().lists.size(), 1u);
  EXPECT_FALSE(rounds_weights(plan_of_unread, 5));
  plan_of_unread.bounds.query_len_from_shapes = true;
  ASSERT_TRUE(plan_detail::size_lists(plan_of_unread).ok());
  EXPECT_TRUE(rounds_weights(plan_of_unread, 5)) << "nobody said it: narrow tiles of decode, and prefill";
}

// A query row of a group that fits no tile of decode is prefill's where its weights may be rounded: it takes all rows, and
// nothing is launched for others. Elsewhere decode takes it in slices.
// Tiles of three warpgroups at head_dim 64, where a batch has two of them for each pair of blocks: 2 x 66 x 384 score rows are
// 1584 tokens of 32 heads, beside one of each request. Caches of codes, packed ones and masks have no such tiles.
TEST(DeviceLists, PromptsAtHeadDim64HaveTallTilesOnHopper) {
  const Device sm90 = find_device("sm90").value();
  const auto tile_of = [&](const std::string& line) {
    const Plan p = plan(parse_problem_line(line)->problem, sm90).value();
    const auto& list = p.work().lists.back();
    EXPECT_EQ(list.role, Role::prefill) << line;
    return std::pair{list.tile_rows, list.tile_keys};
  };
  const std::string bf16 = "q=bf16 heads=32:8 page=16 ";
  const std::pair<std::int64_t, std::int64_t> tall{384, 96}, other{256, 128};
  EXPECT_EQ(tile_of(bf16 + "d=64 reqs=1585"), tall);
  EXPECT_EQ(tile_of(bf16 + "d=64 reqs=1584"), other);
  EXPECT_EQ(tile_of(bf16 + "d=64 reqs=1585,300x1@100"), tall);
  EXPECT_EQ(tile_of(bf16 + "d=64 reqs=1500,300x1@100"), other);
  EXPECT_EQ(tile_of(bf16 + "d=64 layout=hnd window=128 sinks=1 reqs=4x1024"), tall);
  EXPECT_EQ(tile_of(bf16 + "d=64 causal=0 reqs=2048:4096"), tall);
  EXPECT_EQ(tile_of(bf16 + "d=64 causal=0 window=64 wright=64 reqs=4096"), other);
  EXPECT_EQ(tile_of(bf16 + "d=64 layout=packed reqs=4096"), other);
  EXPECT_EQ(tile_of(bf16 + "d=128 reqs=4096"), other);
  EXPECT_EQ(tile_of("q=bf16 kv=fp8_e4m3fn heads=32:8 d=64 page=16 reqs=4096"), other);
  EXPECT_EQ(tile_of("q=f16 heads=35:5 d=64 page=16 reqs=4096"), (std::pair<std::int64_t, std::int64_t>{2 * 189, 96}));
}

// The launch takes the plan's word for it: no tensor is asked.
TEST(DeviceLists, PromptsUnderMasksHaveCodeOfTheirOwnOnHopper) {
  const Device sm90 = find_device("sm90").value();
  for (const auto& [masks, expected] :
       {std::pair{"reqs=100@5", false}, std::pair{"reqs=100@5 window=20", false}, std::pair{"causal=0 reqs=100:50", false},
        std::pair{"causal=0 window=20 wright=3 reqs=100", true}, std::pair{"causal=0 alibi=1 reqs=100", true},
        std::pair{"causal=1x0,1x1 reqs=100,100", true}, std::pair{"qbegin=40 reqs=100@5", true},
        std::pair{"chunk=16 reqs=100@5", true}, std::pair{"prefix=0 causal=0 reqs=100", true},
        std::pair{"tree=100 reqs=100@5", true}})
    for (const int dim : {64, 128, 256, 512}) {
      const std::string line = formatted("q=bf16 heads=32:8 page=16 d={} {}", dim, masks);
      const Plan p = plan(parse_problem_line(line)->problem, sm90).value();
      ASSERT_EQ(p.kernel, "cuda_sm90") << line;
      EXPECT_EQ(p.work().lists.back().masks, expected) << line;
    }
}

TEST(DeviceLists, LargeGroupsOnHopperHaveOneList) {
  const Device sm90 = find_device("sm90").value();
  const auto planned = [&](const char* line, const PlanSettings& settings = {}) {
    return plan(parse_problem_line(line)->problem, sm90, settings).value();
  };
  for (const auto& [line, tile_rows] : {std::pair{"q=f16 kv=f16 heads=64:1 d=128 page=32 reqs=100@5,3x1@99", 256},
                                        std::pair{"q=f16 kv=f16 heads=192:2 d=64 page=32 reqs=1@5", 192},
                                        std::pair{"q=f16 kv=f16 heads=40:1 d=256 page=32 reqs=1@5", 240},
                                        std::pair{"q=bf16 kv=fp8_e4m3fn heads=100:1 d=64 page=32 reqs=2@5", 200},
                                        std::pair{"q=f16 kv=f16 heads=100:1 d=64 page=32 reqs=2@5", 200}}) {
    const Plan p = planned(line);
    ASSERT_EQ(p.kernel, "cuda_sm90") << line;
    ASSERT_EQ(p.work().lists.size(), 1u) << line;
    EXPECT_EQ(p.work().lists[0].tile_rows, tile_rows) << line;
    EXPECT_EQ(p.work().lists[0].min_rows, 0) << line;
    EXPECT_TRUE(rounds_weights(p, 1)) << line;
    const Plan exact = planned(line, {.exact_weights = true});
    EXPECT_FALSE(rounds_weights(exact, 1)) << line;
    EXPECT_EQ(exact.work().lists[0].tile_rows, p.problem.head_dim == 256 ? 32 : 64) << line;
    EXPECT_EQ(exact.work().lists[0].max_rows, 128) << line;
  }
  for (const char* line : {"q=f16 kv=fp8_e4m3fn heads=128:1 d=128 page=32 reqs=3x1@99",
                           "q=f16 kv=f16 heads=128:1 d=128 page=32 reqs=3x1@99 vscale=head",
                           "q=f16 kv=fp8_e5m2 heads=32:8 d=64 page=32 reqs=3x32@99"}) {
    const Plan p = planned(line, {.exact_weights = true});
    ASSERT_EQ(p.kernel, "cuda_sm90") << line;
    ASSERT_EQ(p.work().lists.size(), 1u) << line;
    EXPECT_EQ(p.work().lists[0].tile_rows, 64) << line;
    EXPECT_FALSE(rounds_weights(p, p.bounds.max_query_len)) << line;
  }
}

// What a row gets must depend neither on the plan's other requests nor on how long they are.
TEST(DeviceLists, HopperHasTheSameTilesForAllBatchInvariantPlans) {
  const Device sm90 = find_device("sm90").value();
  for (const char* heads : {"heads=8:8", "heads=32:8", "heads=96:1"})
    for (const char* rest : {"reqs=1@5", "reqs=3x1@50000,7@80", "reqs=4000@0,1@5", "reqs=2000x1@7"}) {
      const std::string line = std::string("q=bf16 kv=fp8_e4m3fn d=128 page=16 ") + heads + " " + rest;
      const Plan p = plan(parse_problem_line(line)->problem, sm90, {.batch_invariant = true}).value();
      ASSERT_EQ(p.kernel, "cuda_sm90") << line;
      ASSERT_EQ(p.work().lists.size(), 1u) << line;
      const DeviceList& list = p.work().lists[0];
      EXPECT_TRUE(list.tile_rows == 32 && list.split_keys == 2048 && list.min_rows == 0 && list.max_rows > 1 << 30) << line;
    }
}

// Where tensors do not suit prefill's copies, the device makes lower tiles in the room of the list: cuda_mma's, or cuda_generic's
// for fp8 caches at head_dim 256.
TEST(DeviceLists, ThePrefillListHasRoomForLowerTiles) {
  std::mt19937 random(15);
  int seen = 0;
  for (int round = 0; round < 200; ++round) {
    Problem p = some_problem(random);
    const bool generic = round % 2 != 0;
    p.head_dim = generic ? 256 : 128;
    if (generic) p.q_dtype = DType::bf16, p.kv_dtype = DType::fp8_e4m3fn;
    const std::int64_t lowest = generic ? 16 : 64;
    const Plan plan = quire::plan(p, find_device("sm90").value()).value();
    if (plan.work().lists.size() != 2 || plan.work().lists[1].role != Role::prefill) continue;
    ++seen;
    const DeviceList& list = plan.work().lists[1];
    std::int64_t tiles = 0;
    for (const Request& r : p.reqs)
      if (r.query_len * p.group() > list.min_rows) tiles += (r.query_len * p.group() + lowest - 1) / lowest;
    EXPECT_LE(tiles, list.max_slices) << to_string(p);
    EXPECT_GE(list.tile_rows, 64);
  }
  EXPECT_GT(seen, 20);
}

// The plan decides which kernel serves a list, and in which role.
TEST(DeviceLists, SayWhoServesThem) {
  const Device sm90 = find_device("sm90").value();
  const auto served = [&](const std::string& line, const PlanSettings& settings = {}) {
    std::vector<std::pair<std::string, Role>> lists;
    const Plan p =
        plan(parse_problem_line(line + " page=16 heads=32:8 reqs=64x1@8191,2048@6144")->problem, sm90, settings).value();
    for (const DeviceList& list : p.work().lists) lists.emplace_back(list.kernel, list.role);
    return lists;
  };
  using Lists = std::vector<std::pair<std::string, Role>>;
  const PlanSettings exact{.exact_weights = true};
  EXPECT_EQ(served("q=bf16 kv=bf16 d=128"), (Lists{{"cuda_sm90", Role::decode}, {"cuda_sm90", Role::prefill}}));
  EXPECT_EQ(served("q=bf16 kv=bf16 d=128", exact), (Lists{{"cuda_sm90", Role::decode}, {"cuda_mma", Role::tall_rows}}));
  EXPECT_EQ(served("q=bf16 kv=fp8_e5m2 d=256", exact), (Lists{{"cuda_sm90", Role::decode}, {"cuda_generic", Role::rows}}));
  EXPECT_EQ(served("q=bf16 kv=bf16 d=128", {.batch_invariant = true}), (Lists{{"cuda_sm90", Role::decode_wide}}));
  EXPECT_EQ(served("q=bf16 kv=bf16 d=128", {.kernel = "cuda_mma"}),
            (Lists{{"cuda_mma", Role::short_rows}, {"cuda_mma", Role::prefill}}));
  EXPECT_EQ(served("q=bf16 kv=bf16 d=128", {.kernel = "cuda_mma", .exact_weights = true}),
            (Lists{{"cuda_mma", Role::short_rows}, {"cuda_mma", Role::tall_rows}}));
  EXPECT_EQ(served("q=bf16 kv=bf16 d=128", {.kernel = "cuda_mma", .batch_invariant = true}),
            (Lists{{"cuda_mma", Role::tall_rows}}));
  EXPECT_EQ(served("q=f32 kv=f32 d=128"), (Lists{{"cuda_generic", Role::rows}}));
}

/// Role, lowest and most score rows, and blocks an SM.
using MmaList = std::tuple<Role, std::int64_t, std::int64_t, std::int64_t>;
constexpr std::int64_t kAnyRows = 2147483647;

std::vector<MmaList> mma_lists_of(const std::string& line, const std::string& device, const PlanSettings& settings = {}) {
  const Plan p = plan(parse_problem_line("q=bf16 page=16 " + line)->problem, find_device(device).value(), settings).value();
  EXPECT_EQ(p.kernel, "cuda_mma") << line << " on " << device;
  std::vector<MmaList> lists;
  for (const DeviceList& list : p.work().lists) {
    const std::int64_t rows = list.role == Role::short_rows ? 8 : list.role == Role::prefill ? 128 : 64;
    EXPECT_EQ(list.tile_rows, rows) << line;
    lists.emplace_back(list.role, list.min_rows, list.max_rows, list.num_blocks / p.num_threads);
  }
  return lists;
}

// cuda_mma's prefill rounds weights and has tiles of 128 rows, which requests of up to 64 would not fill. Eight warps fill an SM,
// in one block or two. Decode rows stay exact.
TEST(DeviceLists, PromptsOfCudaMmaAreRounded) {
  const MmaList decode{Role::short_rows, 0, 8, 2}, tall{Role::tall_rows, 8, kAnyRows, 2}, few{Role::tall_rows, 0, 64, 2};
  const auto prefill = [](std::int64_t min_rows, std::int64_t blocks) {
    return MmaList{Role::prefill, min_rows, kAnyRows, blocks};
  };
  using Lists = std::vector<MmaList>;
  EXPECT_EQ(mma_lists_of("heads=32:8 d=128 reqs=3x1@700,17@5", "sm80"), (Lists{decode, prefill(8, 2)}));
  EXPECT_EQ(mma_lists_of("heads=32:8 d=128 reqs=3x1@700,16@5", "sm80"), (Lists{decode, tall}));
  EXPECT_EQ(mma_lists_of("heads=32:8 d=128 reqs=3x1@700,17@5", "sm80", {.exact_weights = true}), (Lists{decode, tall}));
  EXPECT_EQ(mma_lists_of("heads=32:1 d=64 reqs=3x1@700,3@5", "sm80"), (Lists{few, prefill(64, 2)}));
  EXPECT_EQ(mma_lists_of("heads=71:1 d=64 reqs=3x1@700,3@5", "sm80"), (Lists{prefill(0, 2)}));
  EXPECT_EQ(mma_lists_of("heads=32:8 d=256 reqs=100@5", "sm100"), (Lists{decode, prefill(8, 1)}));
  EXPECT_EQ(mma_lists_of("kv=fp8_e4m3fn heads=32:8 d=64 reqs=100@5", "sm80"), (Lists{decode, prefill(8, 1)}));
  const Plan p =
      plan(parse_problem_line("q=bf16 page=16 heads=32:1 d=64 reqs=3x1@700,3@5")->problem, find_device("sm80").value()).value();
  EXPECT_FALSE(rounds_weights(p, 1));
  EXPECT_TRUE(rounds_weights(p, 3));
}

// An SM of sm86, sm89 and sm120 has 99 KiB for a block: too little for short tiles, but for those of head_dim 128 over fp8, and
// for tiles of head_dim 256. An A100 has 163, too little for short tiles of head_dim 256.
TEST(DeviceLists, TilesOfCudaMmaFitTheDevice) {
  const MmaList every{Role::tall_rows, 0, kAnyRows, 2}, few{Role::tall_rows, 0, 64, 2};
  using Lists = std::vector<MmaList>;
  for (const char* device : {"sm86", "sm89", "sm120"}) {
    EXPECT_EQ(mma_lists_of("heads=32:8 d=128 reqs=64x1@700", device), (Lists{every}));
    EXPECT_EQ(mma_lists_of("heads=32:8 d=64 reqs=64x1@700,50@7", device), (Lists{few, {Role::prefill, 64, kAnyRows, 2}}));
    EXPECT_EQ(mma_lists_of("kv=fp8_e4m3fn heads=32:8 d=128 reqs=64x1@700,50@7", device),
              (Lists{{Role::short_rows, 0, 8, 2}, {Role::prefill, 8, kAnyRows, 1}}));
    EXPECT_EQ(mma_lists_of("kv=fp8_e5m2 heads=32:8 d=64 reqs=64x1@700,50@7", device),
              (Lists{few, {Role::prefill, 64, kAnyRows, 1}}));
    const Problem wide = parse_problem_line("q=bf16 page=16 heads=16:2 d=256 reqs=64x1@700,50@7")->problem;
    const Plan of_wide = plan(wide, find_device(device).value()).value();
    EXPECT_EQ(of_wide.kernel, "cuda_mma");
    ASSERT_EQ(of_wide.work().lists.size(), 1u) << "decode rows and prompts have the same tiles";
    EXPECT_EQ(of_wide.work().lists[0].role, Role::tall_rows);
    EXPECT_EQ(of_wide.work().lists[0].tile_keys, 32) << "64 need 108696 bytes";
  }
  EXPECT_EQ(mma_lists_of("heads=16:2 d=256 reqs=64x1@700,50@7", "sm80"), (Lists{few, {Role::prefill, 64, kAnyRows, 1}}));
}

// Cluster decode has few requests of one row, none of which is long for the blocks of its cluster.
TEST(DeviceLists, FewShortRequestsOfOneRowHaveClusters) {
  const Device h100 = find_device("h100").value();
  const auto cluster = [&](const std::string& line, const PlanSettings& settings = {}) {
    const Plan p = plan(parse_problem_line(line)->problem, h100, settings).value();
    const DeviceList& list = p.work().lists[0];
    EXPECT_EQ(p.kernel, "cuda_sm90") << line;
    EXPECT_EQ(p.work().lists.size(), 1u) << line;
    if (list.role != Role::decode_cluster) return std::int64_t{0};
    EXPECT_EQ(list.num_blocks, p.bounds.num_reqs * p.problem.num_kv_heads * list.cluster) << line;
    const DeviceList other = p.kernel.row().gpu->instead(p, list);
    EXPECT_TRUE(other.kernel == "cuda_sm90" && other.role == Role::decode && other.cluster == 1) << line;
    EXPECT_TRUE(other.max_slices == list.max_slices && other.max_merges == list.max_merges &&
                other.max_partials == list.max_partials)
        << line;
    return list.cluster;
  };
  const std::string heads = "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=";
  EXPECT_EQ(cluster(heads + "1@1023"), 8);
  EXPECT_EQ(cluster(heads + "1@8191"), 8);
  EXPECT_EQ(cluster(heads + "1@8192"), 0) << "a block would have more than 1024 keys";
  EXPECT_EQ(cluster(heads + "2x1@4095"), 4);
  EXPECT_EQ(cluster(heads + "4x1@2047"), 2);
  EXPECT_EQ(cluster(heads + "8x1@1023"), 2);
  EXPECT_EQ(cluster(heads + "16x1@1023"), 1);
  EXPECT_EQ(cluster(heads + "17x1@100"), 0) << "more segments than SMs";
  EXPECT_EQ(cluster(heads + "8x1@2048"), 0) << "a block would have 1024.5 keys";
  EXPECT_EQ(cluster(heads + "8x1@8191 window=512"), 2) << "a block has 256 keys";
  EXPECT_EQ(cluster("q=bf16 kv=bf16 heads=8:1 d=128 page=16 reqs=1@4095"), 8);
  EXPECT_EQ(cluster("q=bf16 kv=bf16 heads=8:1 d=128 page=16 reqs=1@4096"), 0) << "more than 512, and 8 blocks alone";
  EXPECT_EQ(cluster("q=bf16 kv=fp8_e4m3fn heads=64:8 d=64 page=32 reqs=1@8191"), 8);
  EXPECT_EQ(cluster("q=bf16 kv=bf16 heads=32:2 d=128 page=16 reqs=1@1000"), 0) << "16 score rows";
  EXPECT_EQ(cluster("q=bf16 kv=bf16 heads=8:2 d=256 page=16 reqs=1@1000"), 0);
  EXPECT_EQ(cluster("q=bf16 kv=bf16 heads=8:2 d=128 page=24 reqs=1@1000"), 0) << "a unit would be in two pages";
  EXPECT_EQ(cluster("q=bf16 kv=bf16 heads=8:2 d=128 page=16 layout=packed reqs=1@1000"), 0);
  EXPECT_EQ(cluster(heads + "1x2@1000"), 0) << "two rows";
  EXPECT_EQ(cluster(heads + "1@1000", {.batch_invariant = true}), 0);
}

// Narrow decode tiles hold two KV heads where a token's heads lie side by side and each has one query row.
TEST(DeviceLists, HeadsOf64DimsArePaired) {
  const Device h100 = find_device("h100").value();
  const auto heads = [&](const std::string& line, const PlanSettings& settings = {}) {
    const Plan p = plan(parse_problem_line(line)->problem, h100, settings).value();
    const DeviceList& list = p.work().lists[0];
    EXPECT_EQ(p.kernel, "cuda_sm90") << line;
    if (list.heads == 1) return list.heads;
    EXPECT_EQ(list.tile_rows, p.problem.group() <= 4 ? 8 : 16) << line;
    const DeviceList other = p.kernel.row().gpu->instead(p, list);  // list of a call with scales
    EXPECT_TRUE(other.kernel == "cuda_sm90" && other.role == Role::decode && other.heads == 1 && other.tile_rows == 8) << line;
    return list.heads;
  };
  const std::string line = "q=bf16 kv=bf16 heads=32:8 d=64 page=16 ";
  EXPECT_EQ(heads(line + "reqs=64x1@8191"), 2);
  EXPECT_EQ(heads(line + "reqs=64x1@8191 window=128 sinks=1"), 2);
  EXPECT_EQ(heads("q=f16 kv=f16 heads=12:4 d=64 page=16 reqs=64x1@8191"), 2);
  EXPECT_EQ(heads(line + "reqs=1@1023"), 1) << "clusters serve it";
  EXPECT_EQ(heads(line + "reqs=64x2@8191"), 1) << "two rows of a request";
  EXPECT_EQ(heads(line + "reqs=64x1@8191,512@512"), 1) << "a prompt beside";
  EXPECT_EQ(heads(line + "layout=hnd reqs=64x1@8191"), 1) << "heads do not lie side by side";
  EXPECT_EQ(heads("q=bf16 kv=bf16 heads=20:5 d=64 page=16 reqs=64x1@8191"), 1) << "an odd number of heads";
  EXPECT_EQ(heads("q=bf16 kv=bf16 heads=64:8 d=64 page=16 reqs=64x1@8191"), 2) << "16 score rows";
  EXPECT_EQ(heads("q=bf16 kv=bf16 heads=72:8 d=64 page=16 reqs=64x1@8191"), 1) << "18 score rows";
  EXPECT_EQ(heads("q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=64x1@8191"), 1);
  EXPECT_EQ(heads("q=bf16 kv=fp8_e4m3fn heads=32:8 d=64 page=16 reqs=64x1@8191"), 1);
  EXPECT_EQ(heads(line + "reqs=64x1@8191", {.batch_invariant = true}), 1);
}

// A plan keeps the first condition that decides between clusters and Stream-K, and explain() says the condition in words.
TEST(DeviceLists, PlansSayWhyDecodeHasClustersOrStreamK) {
  using plan_detail::ClusterReason;
  using enum ClusterReason;
  struct Case {
    std::string line;
    ClusterReason reason;
    const char* words;
    PlanSettings settings = {};
  };
  const std::string heads = "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=", few = "q=bf16 kv=bf16 heads=8:2 d=128 page=";
  const Case cases[] = {
      {heads + "1@8191", suits,
       "by clusters, not by Stream-K: 8 clusters of 8 blocks run at the same time, and no block has more than 1024 keys"},
      {heads + "1@8192", num_keys,
       "by Stream-K, not by clusters: a row sees up to 8193 keys, expected at most 8192 (clusters of 8 blocks, 1024 keys each)"},
      {heads + "17x1@100", num_segments, "by Stream-K, not by clusters: 17 requests x 8 KV heads, expected 1 to 132 (the SMs)"},
      {heads + "1x2@1000", query_len, "by Stream-K, not by clusters: query_len is up to 2, expected 1"},
      {heads + "1x512,1@1000", query_len, "by Stream-K, not by clusters: query_len is up to 512, expected 1"},
      {heads + "1@1000",
       batch_invariant,
       "in parts of fixed size, not by clusters: the plan is batch_invariant",
       {.batch_invariant = true}},
      {"q=bf16 kv=bf16 heads=32:2 d=128 page=16 reqs=1@1000", group,
       "by Stream-K, not by clusters: group is 16, expected at most 8"},
      {"q=bf16 kv=bf16 heads=8:2 d=256 page=16 reqs=1@1000", head_dim,
       "by Stream-K, not by clusters: d is 256, expected at most 128"},
      {few + "24 reqs=1@1000", page_size, "by Stream-K, not by clusters: page is 24, expected a multiple of 16"},
      {few + "16 layout=packed reqs=1@1000", layout, "by Stream-K, not by clusters: layout is packed, expected nhd or hnd"},
      {few + "16 reqs=1x512", query_len, "by Stream-K, not by clusters: query_len is up to 512, expected 1"},
      {"q=bf16 kv=bf16 heads=8:2 d=512 page=16 reqs=1@1000", no_choice, ""},
      {"q=f32 kv=f32 heads=8:2 d=128 page=16 reqs=1@1000", no_choice, ""},
  };
  for (const Case& c : cases) {
    const Problem problem = parse_problem_line(c.line)->problem;
    const Device h100 = find_device("h100").value();
    EXPECT_EQ(plan(problem, h100, c.settings)->work().lists[0].cluster_reason, c.reason) << c.line;
    const Explanation e = explain(problem, h100, c.settings);
    EXPECT_EQ(e.decode_reason, c.words) << c.line;
    const std::string said = std::string("\ndecode    ") + c.words + "\n";
    EXPECT_EQ(e.text.find(said) != std::string::npos, c.reason != no_choice) << e.text;
  }
}

// Another kernel serves a list, in the room that the plan has made for it, if tensors do not suit tensor copies.
TEST(DeviceLists, WhatStandsInForHopperFitsTheRoom) {
  const Device sm90 = find_device("sm90").value();
  std::set<std::tuple<Role, Role, std::int64_t>> seen;
  for (const char* types : {"q=bf16 kv=bf16 d=128", "q=bf16 kv=fp8_e4m3fn d=256", "q=fp8_e4m3fn kv=fp8_e4m3fn out=bf16 d=64"})
    for (const char* heads : {"heads=8:8", "heads=32:2", "heads=100:1"})
      for (const PlanSettings& settings :
           {PlanSettings{}, PlanSettings{.batch_invariant = true}, PlanSettings{.exact_weights = true}})
        for (const char* reqs : {"reqs=64x1@8191,2048@6144", "reqs=9x3@5000"}) {
          const std::string line = std::string(types) + " " + heads + " page=16 " + reqs;
          const Plan p = plan(parse_problem_line(line)->problem, sm90, settings).value();
          for (const DeviceList& list : p.work().lists) {
            if (list.kernel != p.kernel) continue;
            const DeviceList other = p.kernel.row().gpu->instead(p, list);
            const bool mma = line.starts_with("q=bf16 kv=bf16");
            EXPECT_EQ(other.kernel, mma ? "cuda_mma" : "cuda_generic") << line;
            EXPECT_EQ(other.tile_rows, !mma ? std::min<std::int64_t>(16, list.tile_rows) : list.role == Role::decode ? 8 : 64);
            EXPECT_EQ(other.tile_keys, 64);
            EXPECT_LE(other.max_partials * other.tile_rows, list.max_partials * list.tile_rows) << line;
            EXPECT_EQ(other.num_blocks, mma ? list.num_blocks : 4 * p.num_threads);
            EXPECT_TRUE(other.min_rows == list.min_rows && other.max_rows == list.max_rows &&
                        other.split_keys == list.split_keys && other.max_slices == list.max_slices);
            seen.insert({list.role, other.role, other.tile_rows});
          }
        }
  EXPECT_EQ(seen.size(), 6u) << "decode, decode_wide and prefill, by cuda_mma and by cuda_generic";
}

// cuda_sm90's blocks count merges in one place each and keep two partial results; nobody schedules its list.
TEST(DeviceLists, BlocksThatDealThemselvesHaveTheirPlaces) {
  std::mt19937 random(14);
  int seen = 0, seen_wide = 0;
  for (int round = 0; round < 200; ++round) {
    Problem p = some_problem(random);
    p.head_dim = 128;
    const Plan plan = quire::plan(p, find_device("sm90").value()).value();
    if (plan.kernel != "cuda_sm90") continue;
    ++seen;
    DeviceList list = plan.work().lists.at(0);
    if (list.role == Role::decode_cluster) list = plan.kernel.row().gpu->instead(plan, list);
    const bool narrow = list.tile_rows == 8;
    seen_wide += narrow ? 0 : 1;
    const std::int64_t held = (!narrow ? 1 : itemsize(p.kv_dtype) == 1 ? 4 : 2) * 132;
    const std::int64_t segments = std::max<std::int64_t>(1, static_cast<std::int64_t>(p.reqs.size())) * p.num_kv_heads;
    EXPECT_TRUE(list.num_blocks == held || (narrow && plan.work().lists.size() == 1 && list.num_blocks < held &&
                                            list.num_blocks % segments == 0 && list.num_blocks / segments >= 32))
        << list.num_blocks << ": as many as a device holds at once, or as are worth merging";
    EXPECT_TRUE(narrow || list.tile_rows == 32 || list.tile_rows == 64) << list.tile_rows;
    EXPECT_TRUE(p.group() <= list.tile_rows) << "one new token is decode's";
    EXPECT_LE(list.num_blocks * (narrow ? 1 : 2), list.max_merges * p.num_kv_heads) << "a counter for each of two warpgroups";
    EXPECT_LE(2 * list.num_blocks, list.max_partials * list.tile_rows / (narrow ? 8 : 64)) << "or cuda_mma's tiles of 64 rows";
    EXPECT_EQ(list.max_rows, narrow ? 8 : 32) << "longer rows belong to the other list, or break the call";
  }
  EXPECT_GT(seen, 50);
  EXPECT_GT(seen_wide, 20);
}

TEST(DeviceLists, FewSegmentsHaveFewBlocks) {
  const Device sm90 = find_device("sm90").value();
  for (const auto& [line, blocks, why] :
       {std::tuple{"heads=8:1 d=128 page=16 reqs=1@8191", 34, "sqrt(128 tiles x 19 / 2 rounds of four rows) parts"},
        std::tuple{"heads=4:1 d=128 page=16 reqs=1@8191", 49, "one round"},
        std::tuple{"heads=8:1 d=128 page=16 reqs=1@131071", 139, "long requests are worth more parts"},
        std::tuple{"heads=8:1 d=128 page=16 reqs=1@131071 window=8192", 34, "but not what they do not see"},
        std::tuple{"heads=16:2 d=128 page=8 reqs=1@1023", 64, "32 parts of each in any case"},
        std::tuple{"heads=32:8 d=128 page=8 reqs=1@8191", 264, "no more than the device holds"}}) {
    const Plan p = plan(parse_problem_line(std::string("q=bf16 kv=bf16 ") + line)->problem, sm90).value();
    ASSERT_EQ(p.kernel, "cuda_sm90") << line;
    EXPECT_EQ(p.work().lists.at(0).num_blocks, blocks) << line << ": " << why;
  }
}

TEST(DeviceLists, WhatDoesNotFitTheDevicesNumbersIsRefused) {
  Problem p;
  p.head_dim = std::int64_t{1} << 40;
  const Device sm90 = find_device("sm90").value();
  EXPECT_THAT(plan(p, sm90).status().message(), HasSubstr("head_dim 1099511627776 does not fit the 32-bit numbers"));
  p.head_dim = 64;
  p.reqs = {{1, std::int64_t{1} << 33, (std::int64_t{1} << 33) + 1}};
  EXPECT_THAT(plan(p, sm90).status().message(), HasSubstr("max_seq_len 8589934593"));
  p.reqs.assign(3, {(std::int64_t{1} << 30), 0, std::int64_t{1} << 30});
  EXPECT_THAT(plan(p, sm90).status().message(), HasSubstr("num_tokens * num_q_heads"));
  EXPECT_EQ(plan(p, sm90).status().code(), Code::unsupported);
}

TEST(DeviceLists, BoundsAreThoseOfTheProblem) {
  const Plan p =
      plan(parse_problem_line("q=bf16 kv=bf16 heads=8:2 d=64 page=16 reqs=7@5,2x1@99,0@3")->problem, find_device("sm90").value())
          .value();
  EXPECT_EQ(p.bounds, (Bounds{4, 9, 7, 100}));
  EXPECT_TRUE(p.assumptions.empty());
  EXPECT_TRUE(p.work().tiles.empty());
  EXPECT_THAT(to_string(p), HasSubstr("cuda_sm90 device=sm90 reqs<=4 tokens<=9 query_len<=7 seq_len<=100"));
}

TEST(DeviceLists, APretendedDevicesPlanCannotBeRun) {
  const Case c = make_case(parse_problem_line("q=f32 heads=2:1 d=8 page=4 reqs=3@2 seed=1").value()).value();
  const Plan p = plan(problem_of(c.batch, c.cache, c.options), find_device("sm90").value()).value();
  std::vector<std::byte> workspace(workspace_bytes(p));
  const Status s = attend(p, c.batch, c.cache, c.options, workspace);
  ASSERT_FALSE(s.ok());
  EXPECT_THAT(s.message(),
              ::testing::AnyOf(HasSubstr("but query is in cpu memory"), HasSubstr("this build has no cuda kernels")));
}

TEST(DeviceLists, LengthsBeyondThePlanAreNamed) {
  const Case c = make_case(parse_problem_line("q=f32 heads=2:1 d=8 page=4 reqs=3@2,1@40 seed=1").value()).value();
  Plan p = plan(problem_of(c.batch, c.cache, c.options), find_device("sm90").value()).value();
  EXPECT_TRUE(plan_detail::lengths_within(p, c.batch).ok());
  EXPECT_TRUE(plan_detail::counts_within(p, c.batch).ok());
  p.bounds.max_seq_len = 40;
  EXPECT_THAT(plan_detail::lengths_within(p, c.batch).message(), HasSubstr("request 1 has seq_len 41, planned for at most 40"));
  p.bounds.max_query_len = 2;
  EXPECT_THAT(plan_detail::lengths_within(p, c.batch).message(), HasSubstr("request 0 has query_len 3, planned for at most 2"));
  p.bounds.num_tokens = 3;
  EXPECT_THAT(plan_detail::counts_within(p, c.batch).message(),
              HasSubstr("2 requests and 4 tokens, planned for at most 2 and 3"));
}

}  // namespace
}  // namespace quire
