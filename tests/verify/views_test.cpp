// SPDX-License-Identifier: Apache-2.0
// The check strided_inputs: what views are made of, who is asked for which of them, and what a kernel that does not read its
// strides is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "cases/device_case.h"
#include "cases/strided_case.h"
#include "quire/tools/report.hpp"
#include "semantics/dtype.h"
#include "semantics/index_tensor.h"
#include "verify/judge.h"
#include "verify/mutants.h"

namespace quire::verify_detail {
namespace {

using ::testing::HasSubstr;

/// Lines that have, together, every input that a call reads.
constexpr const char* kLines[] = {
    "q=f32 heads=4:2 d=8 page=4 reqs=9@7/12,3@12/12,0@3,2@5 alibi=1 sinks=1 kscale=head vscale=head window=5 lse=1 seed=1",
    "q=bf16 kv=i8 layout=hnd heads=4:2 d=16 page=4 reqs=9@7,1@30 kscale=token vscale=token causal=1x0,1x1 wright=3 "
    "kbegin=1x0,1x4 "
    "qbegin=1x9,1x40 seed=2",
    "q=f16 kv=nvfp4 heads=4:2 d=32 page=4 reqs=9@7,9@30 tree=1x3,1x4 spans=0:3-9,1:2-5 prefix=1x2,1x3 chunk=16 index=i64 seed=3",
    "q=fp8_e4m3fn kv=fp8_e4m3fn out=bf16 layout=packed heads=4:2 d=16 page=4 reqs=3@9,1@20 qscale=head seed=4",
    "q=bf16 heads=4:1 d=24 dv=16 latent=1 page=4 reqs=3@9,1@20 seed=5",
    "q=bf16 kv=fp8_ds_mla heads=3:1 d=576 dv=512 latent=1 page=4 reqs=3@9,1@20 seed=6"};

Result<Case> made(const std::string& line) { return make_case(parse_problem_line(line).value()); }

std::map<std::string, Tensor> inputs_of(const Case& c) {
  std::map<std::string, Tensor> map;
  cases::for_each_input(c, [&](std::string_view name, const Tensor& t) {
    if (t.num_elements() > 1) map[std::string(name)] = t;
  });
  return map;
}

/// Bytes of every element, in index order.
std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> bytes;
  const std::int64_t size = itemsize(t.dtype);
  for (std::int64_t i = 0; i < t.num_elements(); ++i) {
    std::int64_t at = 0, rest = i;
    for (int d = t.rank - 1; d >= 0; --d) at += rest % t.shape[d] * t.stride[d], rest /= t.shape[d];
    const auto* element = static_cast<const std::byte*>(t.data) + at * size;
    bytes.insert(bytes.end(), element, element + size);
  }
  return bytes;
}

class EveryView : public ::testing::TestWithParam<std::tuple<Strides, int>> {};

TEST_P(EveryView, HoldsTheSameElementsAndObeysTheContract) {
  const auto [strides, turn] = GetParam();
  for (const char* line : kLines) {
    const Result<Case> c = made(line);
    ASSERT_TRUE(c.ok()) << line << c.status().message();
    const Case view = cases::with_views(c.value(), {strides, static_cast<std::uint64_t>(turn), PoisonKind::nan});
    const auto before = inputs_of(c.value()), after = inputs_of(view);
    for (const auto& [name, t] : before) {
      EXPECT_EQ(bytes_of(t), bytes_of(after.at(name))) << name << " " << line;
      if (strides == Strides::any) continue;
      for (int d = 0; d < t.rank; ++d) EXPECT_TRUE(after.at(name).stride[d] > 0 || t.shape[d] == 1) << name;
      EXPECT_TRUE(after.at(name).stride[t.rank - 1] == 1 || t.shape[t.rank - 1] == 1) << name;
    }
    EXPECT_TRUE(check(view.batch, view.cache, view.options, Depth::tables).ok()) << line;
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryView, ::testing::Combine(::testing::Values(Strides::rows, Strides::any), ::testing::Range(0, 6)));

TEST(Views, LeaveNoInputContiguousInEveryTurn) {
  std::set<std::string> all, strided;
  for (const char* line : kLines)
    for (const Strides strides : {Strides::rows, Strides::any})
      for (std::uint64_t turn = 0; turn < 3; ++turn) {
        const Result<Case> c = made(line);
        for (const auto& [name, t] : inputs_of(c.value())) all.insert(name);
        for (const auto& [name, t] : inputs_of(cases::with_views(c.value(), {strides, turn, PoisonKind::nan})))
          if (!t.is_contiguous()) strided.insert(name);
      }
  EXPECT_EQ(all, strided);
  EXPECT_EQ(all.size() + 1, view_mutants().size())
      << "a line for every input but output_scale, and a mutant for K by the strides of V";
}

TEST(Views, HavePoisonBetweenTheirElements) {
  const Result<Case> c = made(kLines[0]);
  const Case nan = cases::with_views(c.value(), {Strides::any, 0, PoisonKind::nan});
  const Case garbage = cases::with_views(c.value(), {Strides::any, 0, PoisonKind::finite_garbage});
  const Tensor &q = nan.batch.query, &lens = nan.batch.seq_lens;
  EXPECT_TRUE(std::isnan(semantics::load(q.data, q.dtype, 1)));
  EXPECT_EQ(std::fabs(semantics::load(garbage.batch.query.data, q.dtype, 1)), 1e4f);
  EXPECT_EQ(semantics::load_index(lens.data, lens.dtype, 1), 2147480000);
  EXPECT_EQ(semantics::load_index(garbage.batch.seq_lens.data, lens.dtype, 1), 1);
}

/// Engines keep K and V in one allocation, page by page, and queries in rows of a fused projection.
TEST(Views, AreThoseThatEnginesHave) {
  const Result<Case> c = made(kLines[0]);
  const auto turn = [&](std::uint64_t n) { return cases::with_views(c.value(), {Strides::rows, n, PoisonKind::nan}); };
  const Case fused = turn(0), transposed = turn(1), in_rows = turn(2);
  const auto distance = [](const Tensor& a, const Tensor& b) {
    return static_cast<float*>(b.data) - static_cast<float*>(a.data);
  };
  const Tensor& k = fused.cache.k;
  EXPECT_GT(k.stride[0], 2 * k.shape[1] * k.shape[2] * k.shape[3] - 1);
  EXPECT_LT(distance(k, fused.cache.v), k.stride[0]) << "V's page behind K's";
  EXPECT_LT(distance(fused.batch.query, fused.batch.key), fused.batch.query.stride[0]) << "a token's key behind its query";
  EXPECT_TRUE(transposed.cache.k.stride[2] > transposed.cache.k.stride[1] ||
              transposed.cache.v.stride[2] > transposed.cache.v.stride[1])
      << "hnd memory, shown as nhd";
  EXPECT_LT(distance(in_rows.cache.k, in_rows.cache.v), 2 * in_rows.cache.k.shape[3]) << "V's elements behind K's of one head";
}

CaseResult judged(const Target& target, const std::string& line = kLines[0]) {
  Result<Prepared> p = prepare({"lines", "Line", parse_problem_line(line).value(), Special::none});
  EXPECT_TRUE(p.ok()) << p.status().message();
  return judge(target, p.value(), asked_checks(target, {}));
}

CheckResult check_of(const CaseResult& result, const std::string& name) {
  for (const CheckResult& check : result.checks)
    if (check.check == name) return check;
  return {};
}

const Mutant& view_mutant(const std::string& id) {
  static const std::vector<Mutant> list = view_mutants();
  return *std::ranges::find(list, id, &Mutant::id);
}

TEST(StridedInputs, OurKernelsPassOnEveryInput) {
  for (const char* line : kLines) {
    const CaseResult result = judged(backend_target("cpu").value(), line);
    EXPECT_EQ(check_of(result, "strided_inputs").state, CheckState::pass) << line << check_of(result, "strided_inputs").text;
  }
}

TEST(StridedInputs, AKernelThatReadsNoStridesFailsInNothingElse) {
  for (const char* id : {"reads_block_table_as_contiguous", "reads_query_as_contiguous", "reads_k_as_contiguous"}) {
    const CaseResult result = judged(view_mutant(id).target);
    for (const CheckResult& check : result.checks)
      EXPECT_EQ(check.state == CheckState::fail, check.check == "strided_inputs") << id << " " << check.check << check.text;
    EXPECT_THAT(check_of(result, "strided_inputs").text, HasSubstr("inputs as views, with NaN between their elements: ")) << id;
  }
}

TEST(StridedInputs, TheFindingNamesTheInput) {
  VerifyOptions options;
  options.matrices = {};
  options.lines = {kLines[0]};
  options.power = options.shrink = false;
  const Result<Verdict> v = verify(view_mutant("reads_block_table_as_contiguous").target, options);
  ASSERT_TRUE(v.ok());
  EXPECT_THAT(to_string(v.value()), HasSubstr("; block_table as a view is enough"));
}

TEST(StridedInputs, AreAskedAsFarAsTheTargetTakesThem) {
  for (const Strides strides : {Strides::none, Strides::rows, Strides::any}) {
    bool strided = false, negative = false, steps = false;
    Target t = backend_target("cpu").value();
    t.strides = strides;
    t.attend = [&, right = t.attend](const Case& c, std::string& kernel) {
      for (const auto& [name, input] : inputs_of(c)) {
        strided = strided || !input.is_contiguous();
        for (int d = 0; d < input.rank; ++d) negative = negative || input.stride[d] < 0;
        steps = steps || std::abs(input.stride[input.rank - 1]) > 1;
      }
      return right(c, kernel);
    };
    t.variants.clear();
    t.batch_invariant = false;
    for (const std::string seed : {" seed=0", " seed=3"}) {
      const CheckResult check = check_of(judged(t, "q=f32 heads=4:2 d=8 page=4 reqs=9@7,1@12" + seed), "strided_inputs");
      EXPECT_EQ(check.state, strides == Strides::none ? CheckState::skipped : CheckState::pass) << check.text;
    }
    EXPECT_EQ(strided, strides != Strides::none);
    EXPECT_EQ(negative, strides == Strides::any);
    EXPECT_EQ(steps, strides == Strides::any);
  }
}

TEST(StridedInputs, ARefusalOfViewsIsNoFailure) {
  Target t = right_target();
  t.attend = [right = t.attend](const Case& c, std::string& kernel) {
    return c.cache.k.is_contiguous() ? right(c, kernel) : Status(Code::unsupported, "k is not contiguous");
  };
  const CheckResult check = check_of(judged(t), "strided_inputs");
  EXPECT_EQ(check.state, CheckState::skipped);
  EXPECT_EQ(check.text, "views are refused: k is not contiguous");
}

/// A target that takes contiguous inputs alone is not judged by mutants that read strides wrongly.
TEST(StridedInputs, PowerCountsMutantsThatTheTargetWasAsked) {
  for (const Strides strides : {Strides::none, Strides::rows}) {
    Target t = backend_target("cpu").value();
    t.strides = strides;
    VerifyOptions options;
    options.matrices = {};
    options.lines = {kLines[0]};
    const Result<Verdict> v = verify(t, options);
    ASSERT_TRUE(v.ok());
    EXPECT_EQ(v->verdict, VerifyVerdict::pass) << to_string(v.value());
    std::set<std::string> killed;
    for (const MutantResult& m : v->power)
      if (m.family == "strides" && m.killed) killed.insert(m.id);
    EXPECT_EQ(killed.contains("reads_query_as_contiguous"), strides == Strides::rows);
    EXPECT_FALSE(killed.contains("reads_seq_lens_as_contiguous")) << "rows have no steps between lengths";
  }
}

}  // namespace
}  // namespace quire::verify_detail
