// SPDX-License-Identifier: Apache-2.0
// The case files: every line parses, is canonical in content, can be made, keeps the contract, and really has its hazard.
#include "capture/cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "capture/case_util.h"
#include "quire/contract.hpp"

namespace quire {
namespace {

using test::hazards;
using test::load_cases;

bool any_request(const ProblemLine& line, const std::function<bool(const Request&)>& property) {
  return std::any_of(line.problem.reqs.begin(), line.problem.reqs.end(), property);
}
std::int64_t window(const ProblemLine& line) { return line.problem.sliding_window.value_or(0); }
bool one_of(std::int64_t value, std::initializer_list<std::int64_t> set) {
  return std::find(set.begin(), set.end(), value) != set.end();
}

/// What a line of each file must have, from the words of design.md.
const std::map<std::string, std::function<bool(const ProblemLine&)>>& properties() {
  static const std::map<std::string, std::function<bool(const ProblemLine&)>> map = {
      {"LastPagePartial",
       [](const auto& l) { return any_request(l, [&](auto& r) { return r.cached_len % l.problem.page_size != 0; }); }},
      {"ChunkStartsMidPage",
       [](const auto& l) {
         return any_request(l, [&](auto& r) { return r.query_len > 1 && r.context_len % l.problem.page_size != 0; });
       }},
      {"WindowHidesFirstPage",
       [](const auto& l) {
         return window(l) > 0 && any_request(l, [&](auto& r) { return r.context_len + 1 - window(l) >= l.problem.page_size; });
       }},
      {"WindowOne", [](const auto& l) { return window(l) == 1; }},
      {"NoVisibleKey",
       [](const auto& l) { return window(l) > 0 && any_request(l, [&](auto& r) { return r.context_len > 100 * window(l); }); }},
      {"QueryLenZero",
       [](const auto& l) { return l.problem.reqs.empty() || any_request(l, [](auto& r) { return r.query_len == 0; }); }},
      {"PaddedRows", [](const auto& l) { return l.problem.padding != Padding::refused; }},
      {"SharedPrefixPages",
       [](const auto& l) {
         return l.shared_pages > 0 && std::count_if(l.problem.reqs.begin(), l.problem.reqs.end(),
                                                    [&](auto& r) { return r.context_len >= l.problem.page_size; }) >= 2;
       }},
      {"PageTailNaN",
       [](const auto& l) { return any_request(l, [&](auto& r) { return r.cached_len % l.problem.page_size != 0; }); }},
      {"OutOfWindowNaN",
       [](const auto& l) {
         return window(l) > 0 && any_request(l, [&](auto& r) {
                  return r.context_len >= window(l) && (r.context_len + 1 - window(l)) % l.problem.page_size != 0;
                });
       }},
      {"TablePastEndHuge",
       [](const auto& l) {
         const auto pages = [&](auto& r) { return r.cached_len / l.problem.page_size; };
         std::set<std::int64_t> counts;
         for (const Request& r : l.problem.reqs) counts.insert(pages(r));
         return counts.size() > 1;
       }},
      {"QueryLongerThanTile",
       [](const auto& l) { return any_request(l, [](auto& r) { return r.query_len > 128 && r.query_len % 2 != 0; }); }},
      {"OddHeadDim", [](const auto& l) { return one_of(l.problem.head_dim, {1, 7, 24, 80, 120, 192, 256, 512}); }},
      {"OddGroup", [](const auto& l) { return one_of(l.problem.group(), {1, 2, 3, 5, 7, 8, 16, 17, 64}); }},
      {"OddPage", [](const auto& l) { return one_of(l.problem.page_size, {1, 5, 8, 16, 32, 48, 256, 544}); }},
      {"HugeOffsets",
       [](const auto& l) {
         return l.num_pages * l.problem.page_size * l.problem.num_kv_heads * l.problem.head_dim > (std::int64_t{1} << 31);
       }},
      {"NegativeSlopes", [](const auto& l) { return l.problem.alibi && l.problem.num_q_heads >= 3; }},
      {"SinkDominates", [](const auto& l) { return l.problem.sinks; }},
      {"Fp8Extremes", [](const auto& l) { return is_fp8(l.problem.kv_dtype); }},
      {"PeakySoftmax",
       [](const auto& l) { return (3 - l.seed % 4 + 4) % 4 < static_cast<std::uint64_t>(l.problem.num_q_heads); }},
      {"SpeculativeRows",
       [](const auto& l) { return any_request(l, [](auto& r) { return r.query_len >= 2 && r.query_len <= 17; }); }},
      {"CachedLenBetween",
       [](const auto& l) {
         return any_request(l, [](auto& r) { return r.context_len < r.cached_len && r.cached_len < r.seq_len(); });
       }},
  };
  return map;
}

class Cases : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Hazards, Cases, ::testing::ValuesIn(hazards()), [](const auto& row) { return row.param; });

TEST_P(Cases, HaveTheirHazardAndRoundTrip) {
  std::set<std::string> distinct;
  for (const ProblemLine& line : load_cases(GetParam())) {
    EXPECT_TRUE(properties().at(GetParam())(line)) << to_string(line);
    EXPECT_EQ(parse_problem_line(to_string(line)).value(), line);
    EXPECT_TRUE(distinct.insert(to_string(line)).second) << "twice: " << to_string(line);
  }
  EXPECT_GE(distinct.size(), 3u);
}

TEST_P(Cases, CanBeMadeAndKeepTheContract) {
  if (GetParam() == "HugeOffsets") return;  // 5 GiB each; the rule that they parse and have their hazard holds above
  for (const ProblemLine& line : load_cases(GetParam())) {
    const Result<Case> c = make_case(line);
    ASSERT_TRUE(c.ok()) << to_string(line) << "\n" << c.status().message();
    const Findings findings = check(c.value().batch, c.value().cache, c.value().options);
    EXPECT_TRUE(findings.ok()) << to_string(line) << "\n" << findings.status().message();
  }
}

TEST(CaseFiles, PropertiesCanFail) {
  const ProblemLine bland = parse_problem_line("q=f32 heads=20:2 d=64 page=4 reqs=1@3").value();
  const ProblemLine one_head = parse_problem_line("q=f32 heads=1 d=64 page=4 reqs=1@3 seed=0").value();
  for (const auto& [name, holds] : properties()) EXPECT_FALSE(holds(name == "PeakySoftmax" ? one_head : bland)) << name;
}

TEST(CaseFiles, AreTheHazardsAndBatches) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/cases"))
    found.insert(entry.path().filename().string());
  std::set<std::string> expected = {"Batches.txt"};
  for (const std::string& name : hazards()) expected.insert(name + ".txt");
  EXPECT_EQ(found, expected);
  EXPECT_EQ(properties().size(), hazards().size());
  EXPECT_GE(load_cases("Batches").size(), 4u);
}

TEST(CaseFiles, CoverEveryValueThatTheDesignLists) {
  const auto values = [](const std::string& file, const std::function<std::int64_t(const Problem&)>& of) {
    std::set<std::int64_t> set;
    for (const ProblemLine& line : load_cases(file)) set.insert(of(line.problem));
    return set;
  };
  using Set = std::set<std::int64_t>;
  EXPECT_EQ(values("OddHeadDim", [](const Problem& p) { return p.head_dim; }), (Set{1, 7, 24, 80, 120, 192, 256, 512}));
  EXPECT_EQ(values("OddGroup", [](const Problem& p) { return p.group(); }), (Set{1, 2, 3, 5, 7, 8, 16, 17, 64}));
  EXPECT_EQ(values("OddPage", [](const Problem& p) { return p.page_size; }), (Set{1, 5, 8, 16, 32, 48, 256, 544}));
  EXPECT_EQ(values("Fp8Extremes", [](const Problem& p) { return static_cast<std::int64_t>(p.kv_dtype); }), (Set{4, 5, 6, 7}));
  for (const std::string& file : hazards())
    EXPECT_EQ(values(file, [](const Problem& p) { return static_cast<std::int64_t>(p.layout); }), (Set{0, 1, 2})) << file;
}

}  // namespace
}  // namespace quire
