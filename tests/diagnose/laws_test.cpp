// SPDX-License-Identifier: Apache-2.0
// The laws that need no oracle: each holds on right outputs of every kind, and each notices its own fault.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "diagnose/diagnose_util.h"
#include "diagnose/laws.h"

namespace quire::test {
namespace {

using diagnose_detail::Law;

diagnose_detail::Laws laws_of(const Case& c) {
  const faults_detail::Facts facts(c.batch, c.cache, c.options);
  const diagnose_detail::Observed observed{c.observed, c.observed_lse};
  return diagnose_detail::apply_laws(facts, observed);
}

std::vector<Law> broken(const Case& c) {
  std::vector<Law> list;
  for (const LawFinding& finding : laws_of(c).findings) list.push_back(finding.law);
  return list;
}

const char* const kLine = "q=f32 heads=4:2 d=16 page=8 reqs=20@30,1@100";

class RightOutputs : public testing::TestWithParam<const char*> {};
TEST_P(RightOutputs, BreakNoLaw) { EXPECT_TRUE(broken(right(GetParam())).empty()); }
INSTANTIATE_TEST_SUITE_P(, RightOutputs,
                         testing::Values(kLine, "q=bf16 heads=4:1 d=64 page=16 window=5 reqs=9@40,1@100 layout=packed",
                                         "q=f16 kv=fp8_e4m3fn kscale=head vscale=head heads=6:3 d=32 page=5 reqs=1@100,1@0,3@4",
                                         "q=bf16 heads=4:2 d=16 page=8 sinks=1 reqs=5@30,1@60,1",
                                         "q=f16 heads=2 d=1 page=8 reqs=5@30",
                                         "q=f32 heads=4:2 d=16 page=8 reqs=8@100/104,5@9/9 lse=1",
                                         "q=f16 heads=2 d=8 page=4 data=tiny reqs=5@9"));

TEST(Laws, NoticeNaN) {
  Case c = right(kLine);
  f32_at(c.observed, 7, 2, 3) = std::nanf("");
  EXPECT_THAT(broken(c), testing::ElementsAre(Law::finite));
  EXPECT_EQ(laws_of(c).findings[0].text, "row 7, head 2, dim 3 holds NaN");
}

TEST(Laws, LetNaNPassWhereVHoldsIt) {
  Case c = right(kLine);
  const std::int64_t page = static_cast<std::int32_t*>(c.batch.block_table.data)[0];
  static_cast<float*>(c.cache.v.data)[page * 8 * 2 * 16] = std::nanf("");
  f32_at(c.observed, 7, 0, 0) = std::nanf("");
  EXPECT_TRUE(broken(c).empty());
}

TEST(Laws, NoticeAFillValue) {
  Case c = right(kLine);
  for (std::int64_t d = 0; d < 16; ++d) f32_at(c.observed, 20, 1, d) = 0.25f;
  EXPECT_THAT(broken(c), testing::ElementsAre(Law::one_value));
  EXPECT_EQ(laws_of(c).findings[0].text, "row 20, head 1: every dim holds 0.25");
}

TEST(Laws, NoticeAValueOutsideTheHull) {
  Case c = right(kLine);
  f32_at(c.observed, 3, 0, 9) = 40.0f;
  EXPECT_THAT(broken(c), testing::ElementsAre(Law::hull));
  EXPECT_THAT(laws_of(c).findings[0].text,
              testing::StartsWith("row 3, head 0, dim 9 holds 40; the values that it may average lie in ["));
}

TEST(Laws, TakeTheHullOfVisibleKeysOnly) {
  // Window 1: the output is the own V row, so any other value of V is outside.
  Case c = right("q=f32 heads=2 d=16 page=8 window=1 reqs=1@30");
  f32_at(c.observed, 0, 1, 4) += 0.01f;
  EXPECT_THAT(broken(c), testing::ElementsAre(Law::hull));
}

TEST(Laws, ListEveryRow) {
  Case c = right(kLine);
  for (const std::int64_t t : {2, 5, 6, 20}) f32_at(c.observed, t, 1, 0) = 99.0f;
  EXPECT_THAT(laws_of(c).findings[0].tokens, testing::ElementsAre(2, 5, 6, 20));
}

}  // namespace
}  // namespace quire::test
