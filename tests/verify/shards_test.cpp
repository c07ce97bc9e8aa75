// SPDX-License-Identifier: Apache-2.0
// Contexts spread over ranks: our kernels pass, every fault of ranks is noticed, and so are kernels that ranks cannot merge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>

#include "quire/shards.hpp"
#include "quire/rank_faults.hpp"
#include "quire/report.hpp"
#include "quire/verify.hpp"
#include "semantics/dtype.h"
#include "verify/matrix.h"
#include "verify/mutants.h"
#include "verify/over_ranks.h"

namespace quire::verify_detail {
namespace {

VerifyOptions shards_only(bool power) {
  VerifyOptions options;
  options.matrices = {"shards"};
  options.power = power;
  options.shrink = false;
  return options;
}

Verdict run_shards(const Target& target, bool power = false) {
  Result<Verdict> v = verify(target, shards_only(power));
  EXPECT_TRUE(v.ok()) << v.status().message();
  return v.ok() ? std::move(v).value() : Verdict{};
}

std::set<std::string> failing_hazards(const Verdict& v) {
  std::set<std::string> names;
  for (const CaseResult& c : v.cases)
    if (c.status == CaseStatus::fail) names.insert(c.name);
  return names;
}

TEST(Shards, OurKernelsPassAndEveryFaultOfRanksIsNoticed) {
  const Verdict v = run_shards(backend_target("cpu").value(), /*power=*/true);
  EXPECT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
  EXPECT_EQ(v.power.size(), rank_faults().size());
  EXPECT_GE(v.power.size(), 12U);
  for (const MutantResult& m : v.power) EXPECT_TRUE(m.killed && m.can_show) << m.id << ": ranks that " << m.text;
  for (const CaseResult& c : v.cases) EXPECT_THAT(c.special, ::testing::HasSubstr("ranks"));
}

TEST(Shards, TheQuickMatrixHasFullPower) {
  VerifyOptions options = shards_only(true);
  options.quick = true;
  const Result<Verdict> v = verify(backend_target("cpu").value(), options);
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(v->verdict, VerifyVerdict::pass) << to_string(v.value());
}

/// The fp64 reference with a change of every lse.
Target with_lse(double (*change)(double)) {
  Target t = right_target();
  t.attend = [attend = t.attend, change](const Case& c, std::string& kernel) {
    const Status s = attend(c, kernel);
    for (std::int64_t i = 0; s.ok() && i < c.batch.lse.shape[0]; ++i)
      for (std::int64_t h = 0; h < c.batch.lse.shape[1]; ++h) {
        const std::int64_t at = i * c.batch.lse.stride[0] + h * c.batch.lse.stride[1];
        const float lse = semantics::load(c.batch.lse.data, DType::f32, at);
        semantics::store(c.batch.lse.data, DType::f32, at, static_cast<float>(change(lse)));
      }
    return s;
  };
  return t;
}

TEST(Shards, AKernelWithLseOfBase2IsNoticed) {
  const Verdict v = run_shards(with_lse([](double lse) { return lse * std::numbers::log2e; }));
  EXPECT_EQ(v.verdict, VerifyVerdict::fail);
  EXPECT_TRUE(failing_hazards(v).contains("UnevenShards"));
}

TEST(Shards, AKernelWhoseEmptyRowsHaveLse0IsNoticed) {
  const Verdict v = run_shards(with_lse([](double lse) { return std::isinf(lse) ? 0 : lse; }));
  EXPECT_EQ(v.verdict, VerifyVerdict::fail);
  EXPECT_TRUE(failing_hazards(v).contains("EmptyShards"));
  EXPECT_TRUE(failing_hazards(v).contains("ShardWithoutVisibleKey"));
}

TEST(Shards, TheRightReferencePasses) { EXPECT_EQ(failing_hazards(run_shards(right_target())), std::set<std::string>{}); }

TEST(Shards, EveryHazardOfTheListIsThere) {
  std::set<std::string> names;
  bool contiguous = false, interleaved = false;
  for (const Entry& e : shard_matrix(/*quick=*/true)) {
    names.insert(e.name);
    ASSERT_GT(e.shard.world, 1) << e.name;
    ASSERT_FALSE(e.line.problem.reqs.empty()) << e.name << ": the line does not parse";
    (e.shard.contiguous() ? contiguous : interleaved) = true;
  }
  EXPECT_TRUE(contiguous && interleaved);
  for (const char* const name :
       {"UnevenShards", "EmptyShards", "RequestOnOneRank", "NoVisibleScore", "MinusInfiniteShard", "ZeroLse"})
    EXPECT_TRUE(names.contains(name)) << name;
}

/// Two implementations, one truth: ranks without a fault are the reference.
TEST(RankFaults, WithoutAFaultRanksAreRight) {
  const Entry entry = shard_matrix(/*quick=*/true).front();
  Target t = right_target();
  t.attend = [&](const Case& c, std::string&) {
    return attend_with_rank_fault(c.batch, c.cache, c.options, {.rank = 0, .world = 3, .interleave = 2, .span = 0}, "");
  };
  VerifyOptions options;
  options.matrices = {};
  options.lines = {to_string(entry.line), "q=f32 heads=4:2 d=16 page=8 sinks=1 window=9 cap=3 lse=1 reqs=9@30,1@70"};
  options.power = false;
  const Result<Verdict> v = verify(t, options);
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(v->verdict, VerifyVerdict::pass) << to_string(v.value());
}

TEST(RankFaults, SayWhatCannotShow) {
  const Result<ProblemLine> line = parse_problem_line("q=f32 heads=4:2 d=16 page=8 reqs=1@9");
  const Case c = make_case(line.value()).value();
  const ContextShard two{.rank = 0, .world = 2, .interleave = 16, .span = 0};
  const auto planted = [&](const char* id) { return attend_with_rank_fault(c.batch, c.cache, c.options, two, id); };
  EXPECT_EQ(planted("no_such_fault").code(), Code::invalid_argument);
  EXPECT_EQ(planted("rank_parts_averaged").message(), "rank_parts_averaged cannot show here: no row sees keys of two ranks");
  EXPECT_EQ(planted("sink_on_every_rank").code(), Code::unsupported);
  EXPECT_TRUE(planted("rank_part_missing").ok());
}

}  // namespace
}  // namespace quire::verify_detail
