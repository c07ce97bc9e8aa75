// SPDX-License-Identifier: Apache-2.0
// The work list covers every (row, KV head, visible key) exactly once, whatever the problem, and cutting is a pure function.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "plan/cost.h"
#include "plan/heaviest_first.h"
#include "plan/scratch.h"
#include "plan/work.h"
#include "quire/plan.hpp"
#include "quire/problem.hpp"
#include "semantics/visible_range.h"

namespace quire {
namespace {

using plan_detail::MergeItem;
using plan_detail::WorkItem;
using plan_detail::WorkTile;

Problem problem_with(std::vector<Request> reqs, std::int64_t heads, std::int64_t kv_heads) {
  Problem p;
  p.num_q_heads = heads;
  p.num_kv_heads = kv_heads;
  p.head_dim = 64;
  p.reqs = std::move(reqs);
  return p;
}

Device device_with(int threads) {
  Device d = find_device("avx512").value();
  d.num_threads = threads;
  return d;
}

Request request(std::int64_t query_len, std::int64_t context_len) { return {query_len, context_len, query_len + context_len}; }

std::vector<WorkItem> items_of(const Plan& plan) {
  std::vector<WorkItem> items;
  for (std::int64_t i = 0; i < plan.num_items(); ++i) items.push_back(plan_detail::item_of(plan, i));
  return items;
}

/// For every (request, KV head, row): the key ranges that items give it, in order.
using Coverage = std::map<std::tuple<int, int, int>, std::vector<std::pair<std::int64_t, std::int64_t>>>;

Coverage coverage_of(const Plan& plan) {
  Coverage coverage;
  for (const WorkItem& item : items_of(plan))
    for (int row = item.row_begin; row < item.row_end; ++row)
      coverage[{item.req, item.kv_head, row}].emplace_back(item.key_begin, item.key_end);
  for (auto& [where, ranges] : coverage) std::sort(ranges.begin(), ranges.end());
  return coverage;
}

void expect_exact_cover(const Plan& plan) {
  const Problem& p = plan.problem;
  Coverage coverage = coverage_of(plan);
  for (int r = 0; r < static_cast<int>(p.reqs.size()); ++r) {
    for (int head = 0; head < p.num_kv_heads; ++head) {
      for (int row = 0; row < p.reqs[static_cast<std::size_t>(r)].query_len; ++row) {
        const auto& ranges = coverage[{r, head, row}];
        ASSERT_FALSE(ranges.empty()) << "request " << r << " head " << head << " row " << row << " of " << to_string(p);
        for (std::size_t i = 1; i < ranges.size(); ++i) ASSERT_EQ(ranges[i].first, ranges[i - 1].second);
        const auto seen =
            semantics::visible_range(p.reqs[static_cast<std::size_t>(r)].context_len + row, p.sliding_window.value_or(0));
        ASSERT_LE(ranges.front().first, seen.begin);
        ASSERT_GE(ranges.back().second, seen.end);
      }
    }
  }
  std::size_t rows = 0;
  for (const Request& r : p.reqs) rows += static_cast<std::size_t>(r.query_len * p.num_kv_heads);
  EXPECT_EQ(coverage.size(), rows) << "items for rows that do not exist";
}

TEST(WorkList, CoversEveryRowAndVisibleKeyOnce) {
  for (const int threads : {1, 2, 64}) {
    for (const std::int64_t window : {0, 1, 100, 5000}) {
      Problem p = problem_with({request(1, 16383), request(0, 7), request(700, 3000), request(5, 0), request(1, 0)}, 8, 2);
      if (window > 0) p.sliding_window = window;
      expect_exact_cover(plan(p, device_with(threads)).value());
    }
  }
}

TEST(WorkList, SplitsLieWithinSegmentsAndMergeInKeyOrder) {
  const Plan plan = quire::plan(problem_with({request(1, 16383), request(3, 5000)}, 8, 1), device_with(16)).value();
  ASSERT_GT(plan.num_merges(), 0);
  const std::vector<WorkItem> work = items_of(plan);
  for (const WorkItem& item : items_of(plan)) {
    if (item.partial >= 0) {
      EXPECT_EQ(item.key_begin / plan.split_keys, (item.key_end - 1) / plan.split_keys);
    }
  }
  for (std::int64_t i = 0; i < plan.num_merges(); ++i) {
    const MergeItem merge = plan_detail::merge_of(plan, i);
    const std::int64_t rows = (merge.row_end - merge.row_begin) * plan.problem.group();
    std::int64_t next_key = 0;
    for (int part = 0; part < merge.num_partials; ++part) {
      const auto item = std::find_if(work.begin(), work.end(),
                                     [&](const WorkItem& w) { return w.partial == merge.first_partial + part * rows; });
      ASSERT_NE(item, work.end());
      EXPECT_EQ(item->req, merge.req);
      EXPECT_EQ(item->kv_head, merge.kv_head);
      EXPECT_EQ(item->row_begin, merge.row_begin);
      EXPECT_EQ(item->row_end, merge.row_end);
      EXPECT_EQ(item->key_begin, next_key);
      next_key = item->key_end;
    }
  }
}

TEST(WorkList, PartialIndicesAreDisjointAndCounted) {
  const Plan plan = quire::plan(problem_with({request(1, 16383), request(2, 9000)}, 12, 3), device_with(32)).value();
  std::vector<int> used(static_cast<std::size_t>(plan.num_partials));
  for (const WorkItem& item : items_of(plan)) {
    if (item.partial < 0) continue;
    const std::int64_t rows = (item.row_end - item.row_begin) * plan.problem.group();
    for (std::int64_t i = 0; i < rows; ++i) ++used[static_cast<std::size_t>(item.partial + i)];
  }
  EXPECT_THAT(used, testing::Each(1));
}

TEST(WorkList, MergesAreThoseOfTheSplitTiles) {
  const Plan plan =
      quire::plan(problem_with({request(1, 40000), request(0, 3), request(40, 100), request(1, 50000)}, 8, 2), device_with(8))
          .value();
  std::map<std::tuple<int, int, int>, int> parts;
  for (const WorkItem& item : items_of(plan))
    if (item.partial >= 0) ++parts[{item.req, item.kv_head, item.row_begin}];
  ASSERT_EQ(plan.num_merges(), static_cast<std::int64_t>(parts.size()));
  for (std::int64_t i = 0; i < plan.num_merges(); ++i) {
    const MergeItem merge = plan_detail::merge_of(plan, i);
    EXPECT_EQ((parts[{merge.req, merge.kv_head, merge.row_begin}]), merge.num_partials);
  }
}

TEST(WorkList, HeaviestFirst) {
  const Plan plan =
      quire::plan(problem_with({request(1, 10), request(300, 2000), request(1, 900), request(1, 90000)}, 4, 4), device_with(4))
          .value();
  const plan_detail::CostModel model(plan.problem);
  std::vector<double> costs;  // costs of whole items, and of the first segment of split ones
  for (const WorkTile& tile : plan.work().tiles) {
    const WorkItem item = plan_detail::item_of(plan, tile.first_item);
    costs.push_back(model(item.row_end - item.row_begin, item.key_end - item.key_begin));
  }
  for (std::size_t i = 1; i < costs.size(); ++i) EXPECT_LE(costs[i], costs[i - 1] * (1 + 1.0 / 128)) << "tile " << i;
  EXPECT_GT(costs.front(), 10 * costs.back());
}

TEST(HeaviestFirst, SortsByTheTopBitsAndKeepsTheOrderOfEqualCosts) {
  std::vector<plan_detail::CostKey> keys;
  const std::vector<double> costs = {3, 1e9, 0, 3, 7e4, 65535, 3.001, 1e30, 0, 2.9};
  for (std::size_t i = 0; i < costs.size(); ++i) keys.push_back(plan_detail::cost_key(costs[i], i));
  plan_detail::sort_heaviest_first(keys);
  std::vector<std::size_t> order;
  for (const plan_detail::CostKey key : keys) order.push_back(plan_detail::index_of(key));
  EXPECT_THAT(order, testing::ElementsAre(7, 1, 4, 5, 0, 3, 6, 9, 2, 8));
}

/// What threads must share in a step, by the hazards of sharing it.
const std::vector<std::vector<Request>>& ragged_batches() {
  static const std::vector<std::vector<Request>> batches = [] {
    std::vector<Request> one_long{request(1, 32767)}, trace{request(433, 0)}, growing,
        two_long{request(1, 65535), request(1, 30000)};
    for (int i = 0; i < 79; ++i) one_long.push_back(request(1, 100 + 7 * i));
    for (int i = 0; i < 79; ++i) trace.push_back(request(1, 1226 + 13 * i));
    for (int i = 0; i < 64; ++i) growing.push_back(request(1, 64 * i));
    return std::vector<std::vector<Request>>{one_long, trace, growing, two_long, {request(2048, 0)}, {request(512, 30000)}};
  }();
  return batches;
}

TEST(Balance, TheBusiestThreadStaysWithinAnEighthOfTheMean) {
  for (const std::vector<Request>& reqs : ragged_batches()) {
    for (const std::int64_t kv_heads : {1, 3, 8}) {
      for (int threads = 1; threads <= 16; ++threads) {
        const Plan plan = quire::plan(problem_with(reqs, 3 * kv_heads, kv_heads), device_with(threads)).value();
        EXPECT_LE(load_imbalance(plan), 1.15) << to_string(plan.problem) << " on " << threads << " threads";
      }
    }
  }
}

TEST(Balance, NothingIsSplitThatSharesOutEvenly) {
  EXPECT_EQ(quire::plan(problem_with({request(1, 16383)}, 32, 8), device_with(2))->num_merges(), 0);
  EXPECT_EQ(quire::plan(problem_with({request(1, 16383)}, 32, 8), device_with(3))->num_merges(), 8);
  EXPECT_EQ(quire::plan(problem_with({request(1, 16383)}, 9, 3), device_with(1))->num_merges(), 0);
}

TEST(Balance, OnlyTheLongRequestIsSplit) {
  const Plan plan = quire::plan(problem_with(ragged_batches()[0], 32, 8), device_with(32)).value();
  EXPECT_EQ(plan.num_merges(), 8);
  for (std::int64_t i = 0; i < plan.num_merges(); ++i) EXPECT_EQ(plan_detail::merge_of(plan, i).req, 0);
}

/// Each item goes to the least loaded thread: what load_imbalance() counts without a step for each item.
double imbalance_item_by_item(const Plan& plan) {
  const plan_detail::CostModel cost(plan.problem);
  std::vector<double> loads(static_cast<std::size_t>(plan.num_threads));
  for (std::int64_t i = 0; i < plan.num_items(); ++i) {
    const plan_detail::WorkItem item = plan_detail::item_of(plan, i);
    *std::min_element(loads.begin(), loads.end()) += cost(item.row_end - item.row_begin, item.key_end - item.key_begin);
  }
  const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
  return *std::max_element(loads.begin(), loads.end()) * static_cast<double>(loads.size()) / total;
}

TEST(Balance, ItemsOfManyHeadsAreCountedAsIfOneByOne) {
  for (const std::vector<Request>& reqs : ragged_batches())
    for (const std::int64_t kv_heads : {3, 1001, 4096})
      for (const int threads : {1, 2, 7, 16}) {
        const Plan plan = quire::plan(problem_with(reqs, kv_heads, kv_heads), device_with(threads)).value();
        EXPECT_NEAR(load_imbalance(plan), imbalance_item_by_item(plan), 1e-9) << kv_heads << " heads on " << threads;
      }
}

TEST(Balance, TakesNoStepForEachOfTwoBillionHeads) {
  constexpr std::int64_t kHeads = 0x7FFFFFFF;
  EXPECT_NEAR(load_imbalance(quire::plan(problem_with({request(1, 15)}, kHeads, kHeads), device_with(2)).value()), 1, 1e-6);
}

TEST(WorkList, EqualInputsGiveEqualPlans) {
  const Problem p = problem_with({request(5, 4000), request(1, 8000)}, 8, 2);
  EXPECT_EQ(plan(p, device_with(4)).value(), plan(p, device_with(4)).value());
  Problem other = p;
  other.reqs[0].context_len += 1;
  other.reqs[0].cached_len += 1;
  EXPECT_FALSE(plan(other, device_with(4)).value() == plan(p, device_with(4)).value());
}

TEST(WorkList, NothingToDoForEmptyRequests) {
  const Plan plan = quire::plan(problem_with({request(0, 5), request(0, 0)}, 2, 1), device_with(2)).value();
  EXPECT_EQ(plan.num_items(), 0);
  EXPECT_EQ(plan.num_merges(), 0);
  EXPECT_EQ(load_imbalance(plan), 1.0);
  EXPECT_EQ(plan.flops, 0.0);
  EXPECT_EQ(plan.kv_bytes, 0);
}

TEST(Plan, VisiblePairsMatchBruteForce) {
  for (const std::int64_t window : {0, 1, 7, 40}) {
    for (const Request& r : {request(13, 29), request(1, 0), request(40, 0), request(3, 100)}) {
      Problem p = problem_with({r}, 1, 1);
      if (window > 0) p.sliding_window = window;
      std::int64_t pairs = 0;
      for (std::int64_t i = 0; i < r.query_len; ++i)
        for (std::int64_t k = 0; k <= r.context_len + i; ++k) pairs += window == 0 || r.context_len + i - k < window;
      EXPECT_EQ(p.visible_pairs(), pairs) << to_string(p);
    }
  }
}

TEST(Plan, RefusesNonsense) {
  const Device device = device_with(1);
  EXPECT_EQ(plan(problem_with({request(1, 1)}, 3, 2), device).status().code(), Code::invalid_argument);
  EXPECT_EQ(plan(problem_with({request(-1, 5)}, 2, 2), device).status().code(), Code::invalid_argument);
  EXPECT_EQ(plan(problem_with({request(1, std::int64_t{1} << 40)}, 2, 2), device).status().code(), Code::invalid_argument);
  EXPECT_EQ(plan(problem_with({{4, 4, 9}}, 2, 2), device).status().code(), Code::invalid_argument);
  Problem window = problem_with({request(1, 1)}, 2, 2);
  window.sliding_window = 0;
  EXPECT_EQ(plan(window, device).status().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace quire
