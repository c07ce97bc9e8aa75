// SPDX-License-Identifier: Apache-2.0
// page_picture(): owners, fill and states of pages against cases made by hand, in every layout; bounded on huge caches.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "quire/tools/capture.hpp"
#include "report/pictures.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

using nlohmann::json;

Case case_of(const std::string& line) {
  Result<ProblemLine> parsed = parse_problem_line(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  Result<Case> made = make_case(parsed.value());
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made.value());
}

std::int64_t page_of(const Case& c, std::int64_t r, std::int64_t logical) {
  return semantics::load_index(c.batch.block_table.data, c.batch.block_table.dtype,
                               r * c.batch.block_table.stride[0] + logical * c.batch.block_table.stride[1]);
}

struct Cell {
  std::string state;
  std::int64_t filled = 0, unwritten = 0, num_owners = 0;
  json owners;
};
Cell cell_of(const json& picture, std::int64_t page) {
  for (const json& cell : picture["cells"])
    if (cell[0] == page) return {picture["states"][cell[1].get<std::size_t>()], cell[2], cell[3], cell[4], cell[5]};
  ADD_FAILURE() << "no page " << page;
  return {};
}

/// Fills one slot of KV head 0 in both tensors, dim by dim.
void fill_slot(const Case& c, std::int64_t page, std::int64_t slot, double value) {
  for (std::int64_t d = 0; d < head_dim(c.cache); ++d) {
    switch (c.cache.layout) {
      case CacheLayout::nhd: set(c.cache.k, {page, slot, 0, d}, value), set(c.cache.v, {page, slot, 0, d}, value); break;
      case CacheLayout::hnd: set(c.cache.k, {page, 0, slot, d}, value), set(c.cache.v, {page, 0, slot, d}, value); break;
      case CacheLayout::packed: {
        const std::int64_t x = packed_x(c.cache.k.dtype);
        set(c.cache.k, {page, 0, d / x, slot, d % x}, value), set(c.cache.v, {page, 0, d, slot}, value);
        break;
      }
    }
  }
}

class EveryLayout : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(PagePicture, EveryLayout, testing::Values("nhd", "hnd", "packed"));

TEST_P(EveryLayout, OwnersFillAndStates) {
  const Case c =
      case_of(std::string("q=f16 kv=f16 heads=2:1 d=16 page=8 reqs=3@17,1@7 pages=9 index=i64 seed=1 layout=") + GetParam());
  const json p = report::page_picture(c.batch, c.cache, c.options);
  EXPECT_EQ(p["num_pages"], 9);
  EXPECT_EQ(p["page_size"], 8);
  EXPECT_EQ(p["bin"], 1);
  EXPECT_EQ(p["cells"].size(), 9U);
  EXPECT_EQ(p["counts"], json({{"clean", 5}, {"recycled", 0}, {"hidden", 0}, {"owned", 4}, {"shared", 0}, {"unwritten", 0}}));
  const Cell last = cell_of(p, page_of(c, 0, 2)), only = cell_of(p, page_of(c, 1, 0));
  EXPECT_EQ(last.state, "owned");
  EXPECT_EQ(last.filled, 4);
  EXPECT_EQ(last.owners, json::parse("[[0,2]]"));
  EXPECT_EQ(only.filled, 8);
  EXPECT_EQ(only.owners, json::parse("[[1,0]]"));
}

TEST_P(EveryLayout, ASlotThatNobodyWroteIsFound) {
  for (const double blank : {0.0, std::nan("")}) {
    const Case c = case_of(std::string("q=bf16 kv=bf16 heads=2:2 d=24 page=8 reqs=3@17,1@7 pages=9 seed=2 layout=") + GetParam());
    fill_slot(c, page_of(c, 0, 1), 3, blank);
    fill_slot(c, page_of(c, 0, 1), 5, blank);
    const json p = report::page_picture(c.batch, c.cache, c.options);
    EXPECT_EQ(p["counts"]["unwritten"], 1);
    EXPECT_EQ(cell_of(p, page_of(c, 0, 1)).state, "unwritten");
    EXPECT_EQ(cell_of(p, page_of(c, 0, 1)).unwritten, 2);
  }
}

TEST_P(EveryLayout, RecycledPagesHoldSomething) {
  const Case c = case_of(std::string("q=f16 kv=f16 heads=2:1 d=16 page=8 reqs=3@17 pages=6 seed=3 layout=") + GetParam());
  std::vector<bool> owned(6);
  for (std::int64_t j = 0; j < 3; ++j) owned[static_cast<std::size_t>(page_of(c, 0, j))] = true;
  std::int64_t spare = 0;
  while (owned[static_cast<std::size_t>(spare)]) ++spare;
  fill_slot(c, spare, 0, 1.5);
  const json p = report::page_picture(c.batch, c.cache, c.options);
  EXPECT_EQ(cell_of(p, spare).state, "recycled");
  EXPECT_EQ(p["counts"]["recycled"], 1);
  EXPECT_EQ(p["counts"]["clean"], 2);
}

TEST(PagePicture, SharedPrefix) {
  const Case c = case_of("q=f16 kv=f16 heads=2:1 d=16 page=4 reqs=6x1@20 share=3 seed=4");
  const json p = report::page_picture(c.batch, c.cache, c.options);
  EXPECT_EQ(p["counts"]["shared"], 3);
  const Cell cell = cell_of(p, page_of(c, 5, 1));
  EXPECT_EQ(cell.state, "shared");
  EXPECT_EQ(cell.num_owners, 6);
  EXPECT_EQ(cell.owners, json::parse("[[0,1],[1,1],[2,1],[3,1]]")) << "the first few are listed";
}

TEST(PagePicture, PagesThatTheWindowHidesNeedNotBeWritten) {
  const Case c = case_of("q=f16 kv=f16 heads=2:1 d=16 page=4 reqs=2@30 window=5 seed=5");
  const json p = report::page_picture(c.batch, c.cache, c.options);
  EXPECT_EQ(p["counts"]["unwritten"], 0) << "made cases hold NaN left of every row's window";
  EXPECT_EQ(p["counts"]["hidden"], 6) << "positions 26 .. 31 are visible: pages 6 and 7";
  EXPECT_EQ(p["counts"]["owned"], 2);
  EXPECT_GT(report::page_picture(c.batch, c.cache, {})["counts"]["unwritten"], 0) << "without a window they would be read";
}

TEST(PagePicture, NewRowsNeedNoCache) {
  const Case c = case_of("q=f16 kv=f16 heads=2:1 d=16 page=4 reqs=9@6/6,3@0/0 pages=5 seed=6");
  const json p = report::page_picture(c.batch, c.cache, c.options);
  EXPECT_EQ(p["counts"]["owned"], 2);
  EXPECT_EQ(p["counts"]["unwritten"], 0);
  EXPECT_EQ(cell_of(p, page_of(c, 0, 1)).filled, 2);
}

TEST(PagePicture, TinyHeadsAreNotCalledUnwrittenForOneZero) {
  const Case c = case_of("q=f16 kv=fp8_e4m3fn heads=1:1 d=1 page=4 reqs=1@15 seed=7");
  set(c.cache.k, {page_of(c, 0, 0), 1, 0, 0}, 0.0);
  EXPECT_EQ(report::page_picture(c.batch, c.cache, c.options)["counts"]["unwritten"], 0);
  set(c.cache.v, {page_of(c, 0, 0), 1, 0, 0}, 0.0);
  EXPECT_EQ(report::page_picture(c.batch, c.cache, c.options)["counts"]["unwritten"], 1);
}

TEST(PagePicture, EntriesOutsideTheCacheAreCountedNotFollowed) {
  const Case c = case_of("q=f16 kv=f16 heads=2:1 d=16 page=4 reqs=2@30 seed=8");
  set_index(c.batch.block_table, {0, 2}, 1000000);
  set_index(c.batch.block_table, {0, 3}, -1);
  set_index(c.batch.query_start_loc, {1}, -7);
  EXPECT_EQ(report::page_picture(c.batch, c.cache, c.options)["outside"], 2);
}

TEST(PagePicture, HostileLengthsAndShapesDoNoHarm) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kLeast = std::numeric_limits<std::int64_t>::min();
  Case c = case_of("q=f16 kv=f16 heads=2:1 d=16 page=4 reqs=2@30,3@4 index=i64 window=5 seed=11");
  for (const std::int64_t hostile : {kMost, kLeast, std::int64_t{-1}}) {
    set_index(c.batch.seq_lens, {0}, hostile);
    set_index(c.batch.query_start_loc, {1}, ~hostile);
    c.options.sliding_window = hostile;
    const json p = report::page_picture(c.batch, c.cache, c.options);
    EXPECT_EQ(p["num_pages"].get<std::size_t>(), p["cells"].size());
  }
  c.cache.v.shape[3] = 8;
  EXPECT_TRUE(report::page_picture(c.batch, c.cache, c.options).is_null()) << "K and V of different sizes";
  c.cache.v.shape[3] = 16;
  c.batch.seq_lens.shape[0] = 1;
  EXPECT_TRUE(report::page_picture(c.batch, c.cache, c.options).is_null()) << "index tensors of different lengths";
}

TEST(PagePicture, HugeCachesGiveBoundedPicturesWithTheWorstInThem) {
  const Case c = case_of("q=f16 kv=f16 heads=1:1 d=8 page=1 reqs=40x1@300 pages=20000 seed=9");
  fill_slot(c, page_of(c, 17, 123), 0, 0.0);
  const json p = report::page_picture(c.batch, c.cache, c.options);
  EXPECT_EQ(p["bin"], 5);
  EXPECT_EQ(p["cells"].size(), 4000U);
  EXPECT_EQ(p["text"], "5 pages per cell; the worst of them is shown");
  EXPECT_EQ(cell_of(p, page_of(c, 17, 123)).state, "unwritten");
  EXPECT_EQ(cell_of(p, page_of(c, 17, 123)).owners, json::parse("[[17,123]]"));
  EXPECT_LT(p.dump().size(), 300000U);
}

TEST(PagePicture, NothingToDraw) {
  Case c = case_of("q=f16 kv=f16 heads=2:1 d=16 page=4 reqs=2@30 seed=10");
  EXPECT_TRUE(report::page_picture({}, c.cache, c.options).is_null());
  EXPECT_TRUE(report::page_picture(c.batch, {}, c.options).is_null());
  c.cache.k.memory = Memory::cuda;
  EXPECT_TRUE(report::page_picture(c.batch, c.cache, c.options).is_null());
}

TEST(RowsPicture, CountsBesideTheRequests) {
  const ProblemLine line = parse_problem_line("q=f16 kv=f16 heads=4:2 d=16 page=4 reqs=2@30,3x1@9,2@30").value();
  const std::vector<RowCount> counts = {{"cpu_avx2", 20}, {"cpu_generic", 8}};
  const json p = report::rows_picture(line.problem, "cpu_avx2", counts);
  EXPECT_EQ(p["expected"], 28);
  EXPECT_EQ(p["kernels"], json::parse(R"([{"kernel":"cpu_avx2","rows":20},{"kernel":"cpu_generic","rows":8}])"));
  ASSERT_EQ(p["requests"].size(), 3U);
  EXPECT_EQ(p["requests"][1],
            json({{"req", 1}, {"count", 3}, {"query_len", 1}, {"context_len", 9}, {"cached_len", 10}, {"rows", 12}}));
  EXPECT_EQ(p["requests"][2]["req"], 4);
}

TEST(RowsPicture, IsBounded) {
  std::string reqs = "1@1";
  for (int i = 2; i < 400; ++i) reqs += ",1@" + std::to_string(i);
  const ProblemLine line = parse_problem_line("q=f16 kv=f16 heads=4:2 d=16 page=4 reqs=" + reqs).value();
  const json p = report::rows_picture(line.problem, "x");
  EXPECT_EQ(p["requests"].size(), 256U);
  EXPECT_EQ(p["text"], "the first 256 of 399 runs of equal requests");
}

}  // namespace
}  // namespace quire::test
