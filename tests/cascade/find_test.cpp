// SPDX-License-Identifier: Apache-2.0
// Shared prefixes on the host: what is found, whether it pays, and that levels hold every visible key of every row once, in
// order.
#include <gmock/gmock.h>

#include <random>

#include "cascade/levels.h"
#include "quire/cascade.hpp"
#include "quire/tools/capture.hpp"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ProblemLine line_of(const std::string& text) {
  Result<ProblemLine> line = parse_problem_line(text);
  EXPECT_TRUE(line.ok()) << line.status().message();
  return line.value();
}

SharedPrefixes found(const std::string& text, bool always = true) {
  return shared_prefixes_of(line_of(text), {.always = always});
}

TEST(FindSharedPrefixes, TreeOfThreeLevels) {
  const SharedPrefixes s = found("q=f32 heads=2 d=8 page=4 reqs=8x1@40 share=2,4x3,2x1");
  ASSERT_EQ(s.levels.size(), 3U) << s.reason;
  EXPECT_THAT(s.levels[0], ElementsAre(SharedRun{0, 8, 0, 2}));
  EXPECT_THAT(s.levels[1], ElementsAre(SharedRun{0, 4, 2, 5}, SharedRun{4, 8, 2, 5}));
  EXPECT_THAT(s.levels[2],
              ElementsAre(SharedRun{0, 2, 5, 6}, SharedRun{2, 4, 5, 6}, SharedRun{4, 6, 5, 6}, SharedRun{6, 8, 5, 6}));
  EXPECT_THAT(s.pages, testing::Each(6));
}

TEST(FindSharedPrefixes, OnlyFullPagesOfContextAndOnlyAsFarAsTheShortestGoes) {
  // 11 tokens of context: two pages of four. The third request has no full page and parts the others.
  EXPECT_THAT(found("q=f32 heads=2 d=8 page=4 reqs=2x1@11,1@3,2x5@30 share=5").levels,
              ElementsAre(ElementsAre(SharedRun{0, 2, 0, 2}, SharedRun{3, 5, 0, 5})));
  // A request with fewer pages shortens the run of all; the others go on without it.
  EXPECT_THAT(found("q=f32 heads=2 d=8 page=4 reqs=1@8,3x1@30 share=5").levels,
              ElementsAre(ElementsAre(SharedRun{0, 4, 0, 2}), ElementsAre(SharedRun{1, 4, 2, 5})));
}

TEST(FindSharedPrefixes, NothingWhereMasksTellRowsApart) {
  EXPECT_FALSE(found("q=f32 heads=2 d=8 page=4 reqs=4x1@40 share=5 alibi=1").shares());
  EXPECT_THAT(found("q=f32 heads=2 d=8 page=4 reqs=4x1@40 share=5 alibi=1").reason, HasSubstr("ALiBi"));
  EXPECT_FALSE(found("q=f32 heads=2 d=8 page=4 reqs=4x1@40 share=5 window=40").shares());
  EXPECT_TRUE(found("q=f32 heads=2 d=8 page=4 reqs=4x1@40 share=5 window=41").shares());
  EXPECT_FALSE(found("q=f32 heads=2 d=8 page=4 reqs=1@40 share=5").shares());
  EXPECT_FALSE(found("q=f32 heads=2 d=8 page=4 reqs=none share=5").shares());
}

TEST(FindSharedPrefixes, SharesWhatPays) {
  const auto pays = [](const std::string& text) { return found(text, false).shares(); };
  EXPECT_TRUE(pays("q=bf16 heads=32:8 d=128 page=16 reqs=256x1@8704 share=512"));
  EXPECT_TRUE(pays("q=bf16 heads=32:8 d=128 page=16 reqs=16x1@4224 share=256"));
  EXPECT_FALSE(pays("q=bf16 heads=32:8 d=128 page=16 reqs=2x1@4224 share=1"));
  // Long chunks fill their tiles alone: they read shared keys no more often together.
  EXPECT_FALSE(pays("q=bf16 heads=32:8 d=128 page=16 reqs=4x1024@4224 share=256"));
  EXPECT_THAT(found("q=bf16 heads=32:8 d=128 page=16 reqs=4x1024@4224 share=256", false).reason, HasSubstr("costs more"));
  EXPECT_THAT(found("q=bf16 heads=32:8 d=128 page=16 reqs=256x1@8704 share=512", false).reason, HasSubstr("saves"));
}

TEST(FindSharedPrefixes, FewRowsOnACpuReadAsFastAlone) {
  const SharingCosts costs = sharing_costs(find_device("avx512").value());
  EXPECT_FALSE(shared_prefixes_of(line_of("q=bf16 heads=32:8 d=128 page=16 reqs=3x1@4224 share=256"), costs).shares());
  EXPECT_TRUE(shared_prefixes_of(line_of("q=bf16 heads=32:8 d=128 page=16 reqs=4x1@4224 share=256"), costs).shares());
}

TEST(FindSharedPrefixes, CallsOfAGpuHaveAPrice) {
  const ProblemLine line = line_of("q=bf16 heads=32:8 d=128 page=16 reqs=4x1@100 share=4");
  EXPECT_TRUE(shared_prefixes_of(line, {}).shares());
  const SharedPrefixes none = shared_prefixes_of(line, sharing_costs(find_device("sm90").value()));
  EXPECT_FALSE(none.shares());
  EXPECT_THAT(none.reason, HasSubstr("nothing is shared: sharing would save"));
}

/// A batch with random lengths, masks and a random prefix tree, as a problem and a table.
struct RandomTree {
  Problem problem;
  cascade::HostTable table;

  explicit RandomTree(std::uint64_t seed) : random(seed) {
    problem.page_size = 1 + below(4);
    problem.num_q_heads = problem.num_kv_heads = 1;
    problem.q_dtype = problem.kv_dtype = DType::f32;
    if (below(4) == 0) problem.sliding_window = 1 + below(40);
    problem.causal = below(3) != 0;
    if (!problem.causal && below(2) == 0) problem.window_right = below(9);
    problem.has_causal = !problem.causal && below(2) == 0;
    problem.has_q_begin = below(4) == 0;
    problem.has_key_begin = below(4) == 0;
    std::vector<std::vector<std::int32_t>> rows;
    std::int32_t next = 0;
    for (std::int64_t n = 1 + below(9); n > 0; --n) add_request(rows, next);
    for (const auto& row : rows) table.columns = std::max(table.columns, static_cast<std::int64_t>(row.size()));
    for (auto& row : rows) {
      row.resize(static_cast<std::size_t>(table.columns), -1);
      table.pages.insert(table.pages.end(), row.begin(), row.end());
    }
  }

 private:
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); }

  void add_request(std::vector<std::vector<std::int32_t>>& rows, std::int32_t& next) {
    Request r;
    r.query_len = below(6);
    r.context_len = below(30);
    r.causal = problem.has_causal ? below(2) == 0 : problem.causal;
    if (problem.has_key_begin) r.key_begin = below(50);
    const bool cached = problem.has_q_begin || below(2) == 0;
    r.cached_len = cached ? r.seq_len() : r.context_len + below(r.query_len + 1);
    if (problem.has_q_begin) r.shift = below(21) - 10;
    r.shift = std::max(r.shift, -(r.key_begin + r.context_len));
    const std::int64_t pages = (r.cached_len + problem.page_size - 1) / problem.page_size;
    std::vector<std::int32_t> row;
    if (!rows.empty() && below(5) != 0) {
      const auto& before = rows.back();
      row.assign(before.begin(), before.begin() + below(std::min(pages, static_cast<std::int64_t>(before.size())) + 1));
    }
    while (static_cast<std::int64_t>(row.size()) < pages) row.push_back(next++);
    rows.push_back(row);
    problem.reqs.push_back(r);
  }

  std::mt19937_64 random;
};

/// Slots of the keys that each row sees, front to back; rows of `key` are negative.
using Seen = std::vector<std::vector<std::int64_t>>;

void add_seen(Seen& seen, const Problem& p, std::span<const std::int32_t> table, std::int64_t columns) {
  std::size_t row = 0;
  std::int64_t token = 0;
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    const Request& q = p.reqs[r];
    for (std::int64_t i = 0; i < q.query_len; ++i, ++row) {
      const KeyPositions keys = p.visible_keys(q, i, i);
      for (std::int64_t k = keys.begin; k < keys.end; ++k) {
        const std::int64_t page =
            k < q.cached_len ? table[r * static_cast<std::size_t>(columns) + static_cast<std::size_t>(k / p.page_size)] : 0;
        seen[row].push_back(k < q.cached_len ? page * p.page_size + k % p.page_size : -1 - (token + k - q.context_len));
      }
    }
    token += q.query_len;
  }
}

Problem problem_of_level(const CascadeLevel& level, const Problem& whole) {
  float nothing = 0;
  Batch batch;
  batch.query = Tensor::contiguous(&nothing, DType::f32, whole.num_tokens(), 1, whole.head_dim);
  batch.output = batch.query;
  const Batch of_level = cascade::batch_of(level, batch, {}, batch.output, {});
  KVCache cache;
  cache.k = cache.v = Tensor::contiguous(&nothing, DType::f32, 1, whole.page_size, 1, whole.head_dim);
  Options options;
  options.sliding_window = whole.sliding_window;
  options.window_right = whole.window_right;
  options.causal = whole.causal;
  return problem_of(of_level, cache, cascade::options_of(level, options));
}

TEST(Levels, EveryVisibleKeyOfEveryRowOnceAndInOrder) {
  int shared = 0, deep = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const RandomTree tree(seed);
    const SharedPrefixes prefixes = find_shared_prefixes(tree.problem, tree.table.pages, tree.table.columns, {.always = true});
    shared += prefixes.shares() ? 1 : 0;
    deep += prefixes.levels.size() > 1 ? 1 : 0;
    const auto rows = static_cast<std::size_t>(tree.problem.num_tokens());
    Seen expected(rows), got(rows);
    add_seen(expected, tree.problem, tree.table.pages, tree.table.columns);
    for (const CascadeLevel& level : cascade::make_levels(tree.problem, prefixes, tree.table)) {
      const Problem p = problem_of_level(level, tree.problem);
      ASSERT_EQ(p.num_tokens(), tree.problem.num_tokens()) << "seed " << seed;
      add_seen(got, p, level.block_table, level.columns);
    }
    ASSERT_EQ(got, expected) << "seed " << seed << ": " << to_string(tree.problem) << "\n" << to_string(prefixes, tree.problem);
  }
  EXPECT_GT(shared, 500);
  EXPECT_GT(deep, 100);
}

TEST(Levels, FoundRunsKeepTheRulesOfNamedOnes) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const RandomTree tree(seed);
    const SharedPrefixes prefixes = find_shared_prefixes(tree.problem, tree.table.pages, tree.table.columns, {.always = true});
    std::vector<SharedRun> runs;
    for (const auto& level : prefixes.levels) runs.insert(runs.begin(), level.begin(), level.end());
    SharedPrefixes named;
    const Findings findings = check_shared_runs(tree.problem, tree.table.pages, tree.table.columns, runs, &named);
    ASSERT_TRUE(findings.ok()) << "seed " << seed << ": " << findings.status().message();
    ASSERT_EQ(named.levels, prefixes.levels) << "seed " << seed;
    ASSERT_EQ(named.pages, prefixes.pages) << "seed " << seed;
  }
}

}  // namespace
}  // namespace quire::test
