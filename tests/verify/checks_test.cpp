// SPDX-License-Identifier: Apache-2.0
// Each check of the suite fails when its fault is planted, and none cries wolf.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cases/chosen_rows.h"
#include "quire/tools/faults.hpp"
#include "quire/tools/report.hpp"
#include "semantics/dtype.h"
#include "semantics/index_tensor.h"
#include "verify/guarded.h"
#include "verify/judge.h"
#include "verify/mutants.h"

namespace quire::verify_detail {
namespace {

using ::testing::HasSubstr;

constexpr const char* kSmall = "q=f32 heads=4:2 d=8 page=4 reqs=9@7,1@12,0@3,2@5 lse=1 seed=1";

constexpr const char* kLeftOfWindow = "q=f32 heads=4:2 d=16 page=4 window=7 reqs=1@150,6@333";

Entry entry(const std::string& line) { return {"lines", "Line", parse_problem_line(line).value(), Special::none}; }

CaseResult judged(const Target& target, const Entry& entry, const std::vector<std::string>& disabled = {}) {
  Result<Prepared> p = prepare(entry);
  EXPECT_TRUE(p.ok()) << p.status().message();
  return judge(target, p.value(), asked_checks(target, disabled));
}

CaseResult judged(const Target& target, const std::string& line = kSmall, const std::vector<std::string>& disabled = {}) {
  return judged(target, entry(line), disabled);
}

std::map<std::string, CheckResult> by_name(const CaseResult& result) {
  std::map<std::string, CheckResult> map;
  for (const CheckResult& check : result.checks) map[check.check] = check;
  return map;
}

const Mutant& call_mutant(const std::string& id) {
  static const std::vector<Mutant> list = call_mutants();
  return *std::find_if(list.begin(), list.end(), [&](const Mutant& m) { return m.id == id; });
}

constexpr const char* kPadded = "q=f32 heads=4:2 d=16 page=8 reqs=9@20,1@33,2x0 pad=5 lse=1 seed=2";
constexpr const char* kZeroPadded = "q=f32 heads=4:2 d=16 page=8 reqs=9@20,1@33,2x0 pad=5:zero lse=1 sinks=1 seed=2";

/// Writes the reference, and `value` into the last row of the lse.
Target touching_lse(float value) {
  Target t = right_target();
  const AttendCase right = t.attend;
  t.attend = [right, value](const Case& c, std::string& kernel) {
    if (const Status s = right(c, kernel); !s.ok()) return s;
    const Tensor& lse = c.batch.lse;
    static_cast<float*>(lse.data)[(lse.shape[0] - 1) * lse.stride[0]] = value;
    return Status();
  };
  return t;
}

TEST(Padding, LeftRowsAreLeftInOutputAndLse) {
  const CaseResult right = judged(right_target(), kPadded);
  EXPECT_EQ(right.status, CaseStatus::pass);
  EXPECT_LT(right.num_compared, right.num_elements) << "padding rows have no right answer";
  const auto checks = by_name(judged(touching_lse(0), kPadded));
  EXPECT_EQ(checks.at("rows").state, CheckState::fail);
  EXPECT_THAT(checks.at("rows").text, ::testing::HasSubstr("the lse of a padding row was written: tokens from 10 on"));
}

TEST(Padding, ZeroRowsAreJudgedLikeAnyOther) {
  EXPECT_EQ(judged(right_target(), kZeroPadded).status, CaseStatus::pass);
  EXPECT_EQ(by_name(judged(touching_lse(0), kZeroPadded)).at("lse").state, CheckState::fail);
  Target left = right_target();
  left.attend = [right = left.attend](const Case& c, std::string& kernel) {
    Case other = c;
    other.batch.padding = Padding::left;
    return right(other, kernel);
  };
  const auto checks = by_name(judged(left, kZeroPadded));
  EXPECT_EQ(checks.at("rows").state, CheckState::fail);
  EXPECT_EQ(checks.at("values").state, CheckState::fail);
}

/// A target that has never heard of 8-bit queries and outputs gets hazards and random lines without them.
TEST(EightBitRows, AreNotAskedOfTargetsThatDoNotTakeThem) {
  for (const bool takes : {false, true}) {
    Target t = right_target();
    t.eight_bit_rows = takes;
    int asked = 0;
    t.attend = [&asked](const Case& c, std::string&) {
      asked += is_fp8(c.batch.output.dtype) ? 1 : 0;
      return Status(Code::unsupported, "only counted");
    };
    VerifyOptions options;
    options.matrices = {"hazards", "random"};
    options.quick = true;
    options.power = false;
    ASSERT_TRUE(verify(t, options).ok());
    EXPECT_EQ(asked > 0, takes);
  }
}

/// A target that has never heard of padding rows gets the hazards without them.
TEST(Padding, IsNotAskedOfTargetsThatDoNotTakeIt) {
  Target t = right_target();
  t.padding = false;
  t.attend = [right = t.attend](const Case& c, std::string& kernel) {
    EXPECT_EQ(c.batch.padding, Padding::refused);
    EXPECT_EQ(c.batch.query.shape[0], num_request_rows(c.batch));
    return right(c, kernel);
  };
  VerifyOptions options;
  options.matrices = {"hazards"};
  options.quick = true;
  options.power = false;
  options.types = {{DType::f32, DType::f32}};
  options.head_dims = {16};
  options.layouts = {CacheLayout::nhd};
  options.disabled_checks = {"repeat", "strides", "threads", "alone", "chunks"};
  const Result<Verdict> verdict = verify(t, options);
  ASSERT_TRUE(verdict.ok()) << verdict.status().message();
  EXPECT_EQ(verdict->verdict, VerifyVerdict::pass) << to_string(verdict.value());
}

TEST(Checks, FindNothingInTheReference) {
  Target right = right_target();
  right.variants = {{"again", right.attend}};
  for (const char* line : {kSmall, "q=bf16 kv=fp8_e4m3fn heads=4:2 d=16 page=8 reqs=5@9/11,1@20 kscale=head vscale=tensor",
                           "q=f16 heads=2:1 d=8 page=4 reqs=none lse=1", "q=f32 heads=2 d=4 page=4 reqs=2x0@5", kZeroPadded}) {
    const CaseResult result = judged(right, line);
    EXPECT_EQ(result.status, CaseStatus::pass) << line;
    for (const CheckResult& check : result.checks) EXPECT_NE(check.state, CheckState::fail) << check.check << check.text;
    EXPECT_EQ(result.num_elements, result.num_compared);
  }
  const auto checks = by_name(judged(right));
  for (const std::string& name : check_names()) EXPECT_EQ(checks.at(name).state, CheckState::pass) << name;
}

class CallMutants : public ::testing::TestWithParam<std::string> {};

TEST_P(CallMutants, FailTheCheckThatExistsForThem) {
  const Mutant& m = call_mutant(GetParam());
  Entry e = entry(m.id == "reads_left_of_window" ? kLeftOfWindow : m.id == "writes_padding_rows" ? kPadded : kSmall);
  if (e.line.problem.sliding_window) e.special = Special::stale_pages;
  const auto checks = by_name(judged(m.target, e));
  ASSERT_TRUE(checks.contains(m.check)) << m.check;
  EXPECT_EQ(checks.at(m.check).state, CheckState::fail) << m.text;
  EXPECT_NE(checks.at(m.check).text, "");
}

std::vector<std::string> call_mutant_ids() {
  std::vector<std::string> ids;
  for (const Mutant& m : call_mutants()) ids.push_back(m.id);
  return ids;
}
INSTANTIATE_TEST_SUITE_P(, CallMutants, ::testing::ValuesIn(call_mutant_ids()), [](const auto& test) { return test.param; });

TEST(Checks, EachOfThemHasAMutant) {
  std::set<std::string> covered;
  for (const std::vector<Mutant>& list : {call_mutants(), view_mutants()})
    for (const Mutant& m : list) covered.insert(m.check);
  for (const std::string& name : check_names()) EXPECT_TRUE(covered.contains(name)) << name;
}

TEST(Checks, GarbageFindsWhatNanDoesNot) {
  const auto checks = by_name(judged(call_mutant("leaks_finite_tail").target));
  EXPECT_EQ(checks.at("values").state, CheckState::pass);
  EXPECT_EQ(checks.at("nan_poison").state, CheckState::pass);
  EXPECT_EQ(checks.at("garbage_poison").state, CheckState::fail);
  EXPECT_THAT(checks.at("garbage_poison").text, HasSubstr("makes the output wrong: "));
}

TEST(Checks, WithoutAPromiseOfBitsOnlyValuesCount) {
  Target noise = call_mutant("noise").target;
  noise.deterministic = false;
  const CaseResult result = judged(noise);
  EXPECT_EQ(result.status, CaseStatus::pass);
  EXPECT_EQ(by_name(result).at("repeat").state, CheckState::skipped);
}

TEST(Checks, OutputsOfTheTargetsOwnHaveNeitherRowsNorStrides) {
  Target copies = right_target();
  copies.in_place = false;
  const auto checks = by_name(judged(copies));
  for (const char* check : {"rows", "strides"}) EXPECT_EQ(checks.at(check).state, CheckState::skipped) << check;
  for (const char* check : {"values", "canaries"}) EXPECT_EQ(checks.at(check).state, CheckState::pass) << check;
}

/// A kernel that copies a head at once wherever its elements are neighbours, and takes heads for neighbours there.
TEST(Checks, GapsBetweenHeadsAreAskedForByThemselves) {
  Target t = right_target();
  t.attend = [right = t.attend](const Case& c, std::string& kernel) {
    Case dense = c;
    const Tensor& o = c.batch.output;
    if (o.stride[2] == 1) dense.batch.output = Tensor::contiguous(o.data, o.dtype, o.shape[0], o.shape[1], o.shape[2]);
    return right(dense, kernel);
  };
  for (const std::vector<std::string>& disabled : {std::vector<std::string>{}, {"nan_poison", "garbage_poison"}}) {
    const auto checks = by_name(judged(t, kSmall, disabled));
    EXPECT_EQ(checks.at("strides").state, CheckState::fail);
    for (const char* check : {"values", "canaries"}) EXPECT_EQ(checks.at(check).state, CheckState::pass) << check;
  }
}

/// Bytes that only a poisoned call changes.
TEST(Checks, DamageByAPoisonedCallIsFound) {
  Target t = right_target();
  t.attend = [right = t.attend](const Case& c, std::string& kernel) {
    const Tensor& table = c.batch.block_table;
    const std::int64_t last = semantics::index_at(table, table.shape[0] - 1, table.shape[1] - 1);
    if (last >= num_pages(c.cache)) static_cast<float*>(c.batch.output.data)[-1] = 0;
    return right(c, kernel);
  };
  EXPECT_EQ(by_name(judged(t)).at("canaries").state, CheckState::fail);
}

// No promise is needed for that: a damaged byte is never right.
TEST(Checks, DamageIsFoundWithoutAPromiseToWriteInPlace) {
  for (const char* id : {"writes_past_end", "changes_the_cache"}) {
    Target t = call_mutant(id).target;
    t.in_place = false;
    EXPECT_EQ(by_name(judged(t)).at("canaries").state, CheckState::fail) << id;
  }
}

TEST(Checks, SkippedLseIsNotAskedFor) {
  Target no_lse = right_target();
  no_lse.skip["lse"] = "returns no lse";
  no_lse.attend = [right = right_target().attend](const Case& c, std::string& kernel) {
    EXPECT_FALSE(c.batch.lse.present());
    return right(c, kernel);
  };
  EXPECT_EQ(judged(no_lse).status, CaseStatus::pass);
}

TEST(Checks, RefusalsAreNoFailures) {
  Target refuses;
  refuses.name = "nothing";
  refuses.attend = [](const Case&, std::string&) { return Status(Code::unsupported, "head_dim 8 is too small"); };
  const CaseResult result = judged(refuses);
  EXPECT_EQ(result.status, CaseStatus::refused);
  EXPECT_EQ(result.reason, "head_dim 8 is too small");
}

TEST(Checks, ErrorsAndExceptionsAreFindings) {
  Target fails = right_target();
  fails.attend = [](const Case&, std::string&) { return Status(Code::internal_error, "device lost"); };
  EXPECT_THAT(by_name(judged(fails)).at("values").text, HasSubstr("device lost"));
  fails.attend = [](const Case&, std::string&) -> Status { throw std::runtime_error("thrown"); };
  EXPECT_THAT(by_name(judged(fails)).at("values").text, HasSubstr("thrown"));
}

// Made cases have a page wherever a token once was, so that a lookup left of the window finds one.
TEST(Checks, OnlyStalePagesShowALookUpLeftOfTheWindow) {
  const Target& target = call_mutant("reads_left_of_window").target;
  Entry e = entry(kLeftOfWindow);
  EXPECT_EQ(judged(target, e).status, CaseStatus::pass);
  e.special = Special::stale_pages;
  EXPECT_THAT(by_name(judged(target, e)).at("values").text, HasSubstr("request 0: the page of position 128 is out of range"));
  EXPECT_EQ(judged(right_target(), e).status, CaseStatus::pass);
}

TEST(Checks, DisabledOnesAreNotMade) {
  const CaseResult result = judged(call_mutant("writes_past_end").target, kSmall, {"canaries"});
  EXPECT_EQ(result.status, CaseStatus::pass);
  EXPECT_FALSE(by_name(result).contains("canaries"));
}

// A kernel whose tiles hold two KV heads multiplies keys of one head with zeros in the place of the other head's query rows:
// 0 x NaN reaches rows that do not see the NaN.
TEST(Checks, ANaNInAKeyOfOneHeadThatReachesItsNeighbourIsNoticed) {
  Entry line = entry("q=bf16 heads=8:4 d=64 page=16 lse=1 reqs=40x1@90");
  line.special = Special::nan_in_a_key;
  EXPECT_EQ(judged(right_target(), line).status, CaseStatus::pass);
  Target pairs = right_target();
  pairs.attend = [right = pairs.attend](const Case& c, std::string& kernel) {
    if (Status s = right(c, kernel); !s.ok()) return s;
    const Tensor& o = c.batch.output;
    const std::int64_t group = o.shape[1] / c.cache.k.shape[2];
    for (std::int64_t token = 0; token < o.shape[0]; ++token)
      for (std::int64_t head = 0; head < o.shape[1]; ++head) {
        const std::int64_t neighbour = head / group % 2 == 0 ? head + group : head - group;
        if (std::isnan(semantics::load(o.data, o.dtype, token * o.stride[0] + neighbour * o.stride[1])))
          semantics::store(o.data, o.dtype, token * o.stride[0] + head * o.stride[1], std::nanf(""));
      }
    return Status();
  };
  EXPECT_EQ(judged(pairs, line).status, CaseStatus::fail);
}

// Bits that are the same alone and in a batch may be wrong in both.
TEST(Checks, ThePlanForTheSameBitsIsJudgedByItsValues) {
  for (const float off : {0.0f, 1.0f}) {
    Target target = right_target();
    target.batch_invariant = true;
    target.invariant = [=, right = target.attend](const Case& c, std::string& kernel) {
      if (Status s = right(c, kernel); !s.ok()) return s;
      const Tensor& o = c.batch.output;
      for (std::int64_t token = 0; token < o.shape[0]; ++token) static_cast<float*>(o.data)[token * o.stride[0]] += off;
      return Status();
    };
    Result<Prepared> p = prepare(entry("q=f32 heads=2 d=4 page=4 reqs=3@30,1@7 lse=1"));
    ASSERT_TRUE(p.ok());
    const CheckResult alone = by_name(judge(target, p.value(), asked_checks(target, {}))).at("alone");
    EXPECT_EQ(alone.state, off == 0.0f ? CheckState::pass : CheckState::fail) << alone.text;
    if (off != 0.0f) {
      EXPECT_THAT(alone.text, HasSubstr("the plan for the same bits: "));
    }
  }
}

// A sample of the rows is compared; every row must be written and finite all the same.
TEST(Samples, AreStratifiedAndNameRealRows) {
  const Problem p = parse_problem_line("q=f32 heads=1 d=1 page=32 reqs=880@430,1@929,539@613").value().problem;
  EXPECT_TRUE(cases::choose_rows(p, 1'000'000'000, 1).empty()) << "all rows";
  const std::vector<std::int64_t> rows = cases::choose_rows(p, 100'000, 1);
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  EXPECT_LT(rows.size(), 400u);
  for (const std::int64_t row : {0, 1, 879, 880, 881, 882, 1419, 63, 64, 17, 18, 49, 50})
    EXPECT_TRUE(std::binary_search(rows.begin(), rows.end(), row)) << row;
}

TEST(Samples, FindWhatIsInThem) {
  const std::string line = "q=f32 heads=2 d=4 page=4 reqs=200@30 lse=1";
  const auto verdict = [&](std::int64_t token, float value) {
    Target wrong = right_target();
    wrong.batch_invariant = false;
    wrong.attend = [=, right = right_target().attend](const Case& c, std::string& kernel) {
      if (Status s = right(c, kernel); !s.ok()) return s;
      const Tensor& o = c.batch.output;
      static_cast<float*>(o.data)[token * o.stride[0]] += value;
      return Status();
    };
    Result<Prepared> p = prepare(entry(line), /*budget=*/20'000);
    EXPECT_TRUE(p.ok());
    EXPECT_FALSE(p->tokens.empty());
    const bool sampled = std::binary_search(p->tokens.begin(), p->tokens.end(), token);
    const CaseResult result = judge(wrong, p.value(), asked_checks(wrong, {}));
    EXPECT_LT(result.num_compared, result.num_elements);
    return std::pair{sampled, by_name(result).at("values")};
  };
  const auto [last_sampled, last] = verdict(199, 1.0f);
  EXPECT_TRUE(last_sampled);
  EXPECT_EQ(last.state, CheckState::fail);
  EXPECT_THAT(last.text, HasSubstr("token 199"));
  for (const std::int64_t token : {100, 101, 102, 103, 104, 105, 106}) {
    const auto [sampled, nan] = verdict(token, std::nanf(""));
    EXPECT_EQ(nan.state, CheckState::fail) << "NaN shows in every row, compared or not";
    if (!sampled) {
      EXPECT_EQ(verdict(token, 1.0f).second.state, CheckState::pass) << "this row is not compared";
    }
  }
}

TEST(Guards, SeeEveryByteAroundAndBetweenTheElements) {
  std::vector<float> shape_only(1);
  const Tensor like = Tensor::contiguous(shape_only.data(), DType::f32, 3, 2, 4);
  for (const Spread spread : {Spread::contiguous, Spread::gaps, Spread::apart}) {
    Guarded untouched(like, spread);
    EXPECT_EQ(untouched.take(), fill_pattern(DType::f32, 24));
    EXPECT_EQ(untouched.damaged(), 0);
    Guarded before(like, spread);
    static_cast<float*>(before.view.data)[-1] = 0;
    before.take();
    EXPECT_EQ(before.damaged(), 4);
    if (spread == Spread::contiguous) continue;
    Guarded between(like, spread);
    static_cast<float*>(between.view.data)[spread == Spread::gaps ? 4 : 1] = 0;  // heads of 4 elements
    between.take();
    EXPECT_EQ(between.damaged(), 4);
  }
}

}  // namespace
}  // namespace quire::verify_detail
