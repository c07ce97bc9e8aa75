// SPDX-License-Identifier: Apache-2.0
// Caches of i8, scales of tokens, and K and V of types of their own, on every CPU kernel of this machine that takes them, against
// the fp64 reference.
#include <gtest/gtest.h>

#include "kernels/hazard_cases.h"
#include "kernels/host_kernels.h"
#include "kernels/judge.h"

namespace quire::test {
namespace {

class CacheForms : public testing::TestWithParam<std::string> {
 protected:
  static void judge_all(const std::vector<verify_detail::Entry>& entries) {
    std::int64_t judged = 0;
    for (const verify_detail::Entry& entry : entries) {
      if (entry.special != Special::none || !takes(GetParam(), entry.line.problem)) continue;
      ++judged;
      const std::vector<std::string> findings = judge(entry.line, kernel_under_test(GetParam()));
      EXPECT_TRUE(findings.empty()) << GetParam() << "\n" << report(entry.line, findings, GetParam());
    }
    // A kernel for bf16 operands refuses all of them. A kernel that takes f32 must take some.
    const ProblemLine f32 = parse_problem_line("q=f32 heads=1 d=32 page=16 reqs=1@9").value();
    if (judged == 0 && !takes(GetParam(), f32.problem)) GTEST_SKIP() << GetParam() << " takes bf16 caches only";
    EXPECT_GT(judged, 0) << GetParam() << " takes none of these caches";
  }
};

TEST_P(CacheForms, TokenScales) { judge_all(verify_detail::token_scale_matrix({}, /*quick=*/false)); }
TEST_P(CacheForms, FourBits) { judge_all(verify_detail::four_bit_matrix({}, /*quick=*/false)); }
TEST_P(CacheForms, UnlikeTypes) { judge_all(verify_detail::unlike_type_matrix({}, /*quick=*/false)); }

INSTANTIATE_TEST_SUITE_P(, CacheForms, testing::ValuesIn(host_kernels()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::test
