// SPDX-License-Identifier: Apache-2.0
// Shrinking: from a large failing line to a small one that still fails.
#include <gtest/gtest.h>

#include "quire/tools/faults.hpp"
#include "quire/tools/verify.hpp"
#include "verify/failure.h"
#include "verify/matrix.h"

namespace quire::verify_detail {
namespace {

ProblemLine parse(const std::string& text) { return parse_problem_line(text).value(); }

const char* const kLarge =
    "q=bf16 kv=fp8_e4m3fn heads=24:3 d=80 page=48 layout=hnd reqs=3x1@700,5@64,17@300/310,0@7 window=100 cap=20 alibi=1 sinks=1 "
    "lse=1 kscale=head vscale=tensor share=2 pages=200 index=i64 seed=11";

TEST(Shrink, ReachesTheSmallestLineIfEverythingFails) {
  const ProblemLine smallest = shrink(parse(kLarge), [](const ProblemLine&) { return true; });
  EXPECT_EQ(to_string(smallest), "q=f32 kv=f32 heads=1:1 d=1 page=1 layout=nhd reqs=1x0 seed=11");
}

TEST(Shrink, KeepsWhatTheFailureNeeds) {
  const auto fails = [](const ProblemLine& l) {
    return l.problem.sliding_window && l.problem.group() > 1 && l.problem.max_seq_len() > 2 * *l.problem.sliding_window;
  };
  const ProblemLine smallest = shrink(parse(kLarge), fails);
  EXPECT_TRUE(fails(smallest));
  EXPECT_EQ(to_string(smallest), "q=f32 kv=f32 heads=2:1 d=1 page=1 layout=nhd reqs=1x1@2 window=1 seed=11");
}

TEST(Shrink, ReturnsTheLineItselfIfNothingSmallerFails) {
  EXPECT_EQ(shrink(parse(kLarge), [](const ProblemLine&) { return false; }), parse(kLarge));
}

TEST(Shrink, StopsAtItsLimit) {
  int tries = 0;
  ShrinkLimits limits;
  limits.tries = 7;
  shrink(parse(kLarge), [&](const ProblemLine&) { return ++tries, false; }, limits);
  EXPECT_EQ(tries, 7);
}

TEST(Shrink, EveryCandidateIsALegalLine) {
  std::uint64_t state = 1;
  for (const Entry& e : random_matrix(3, 5))
    shrink(e.line, [&](const ProblemLine& l) {
      EXPECT_TRUE(parse_problem_line(to_string(l)).ok()) << to_string(l);
      return (state = state * 6364136223846793005u + 1) >> 62 == 0;
    });
}

/// The case of one line that a wrong target fails, with its smallest line.
CaseResult failed_case(const Target& wrong, const std::string& line) {
  VerifyOptions options;
  options.matrices = {};
  options.lines = {line};
  options.power = false;
  const Result<Verdict> verdict = verify(wrong, options);
  EXPECT_TRUE(verdict.ok()) << verdict.status().message();
  if (!verdict.ok()) return {};
  EXPECT_EQ(verdict->verdict, VerifyVerdict::fail) << line;
  return verdict->cases.at(0);
}

// The whole way: a planted fault, its failing case, the smallest line, and the fault still fails there.
TEST(Shrink, OfAPlantedFaultStillFails) {
  Target wrong;
  wrong.name = "wrong";
  wrong.attend = [](const Case& c, std::string&) {
    // A right kernel with one mistake: the window counts for nothing.
    Options options = c.options;
    options.sliding_window.reset();
    Status s = attend_with_fault(c.batch, c.cache, c.options, "window_ignored");
    if (s.code() != Code::unsupported) return s;
    std::string kernel;
    return backend_target("cpu", 1)->attend(c, kernel);
  };
  const CaseResult failing = failed_case(wrong, "q=f16 heads=8:2 d=64 page=16 reqs=20@300,1@50,7@9 window=33 lse=1 seed=5");
  ASSERT_FALSE(failing.reduced_line.empty());
  const Problem smallest = parse(failing.reduced_line).problem;
  EXPECT_LE(smallest.num_q_heads * smallest.head_dim, 4) << failing.reduced_line;
  EXPECT_EQ(smallest.reqs.size(), 1u) << failing.reduced_line;
  EXPECT_LE(smallest.max_seq_len(), 4) << failing.reduced_line;
  failed_case(wrong, failing.reduced_line);
}

// A kernel that is right but for the strides of the output, which only the call with gaps shows.
TEST(Shrink, OfAKernelThatIgnoresStridesIsDoneToo) {
  Target wrong;
  wrong.name = "wrong";
  wrong.attend = [](const Case& c, std::string& kernel) {
    Case plain{.batch = c.batch, .cache = c.cache, .options = c.options};
    Tensor& out = plain.batch.output;
    out = Tensor::contiguous(out.data, out.dtype, out.shape[0], out.shape[1], out.shape[2]);
    return backend_target("cpu", 1)->attend(plain, kernel);
  };
  const CaseResult failing = failed_case(wrong, "q=f32 heads=4:2 d=32 page=8 reqs=3@9,1@21 seed=5");
  ASSERT_FALSE(failing.reduced_line.empty());
  EXPECT_LE(parse(failing.reduced_line).problem.reqs.size(), 1u) << failing.reduced_line;
  for (const CheckResult& check : failing.checks) {
    if (check.state != CheckState::fail) continue;
    EXPECT_EQ(check.check, "strides");
    EXPECT_NE(check.text.find("in_place"), std::string::npos) << check.text;
  }
}

}  // namespace
}  // namespace quire::verify_detail
