// SPDX-License-Identifier: Apache-2.0
// Caches of i8 and scales of tokens on every CPU kernel of this machine that takes them, against the fp64 reference.
#include <gtest/gtest.h>

#include "kernels/hazard_cases.h"
#include "kernels/host_kernels.h"
#include "kernels/judge.h"

namespace quire::test {
namespace {

class TokenScales : public testing::TestWithParam<std::string> {};

TEST_P(TokenScales, EveryTypeAndShape) {
  std::int64_t judged = 0;
  for (const verify_detail::Entry& entry : verify_detail::token_scale_matrix({}, /*quick=*/false)) {
    if (entry.special != Special::none || !takes(GetParam(), entry.line.problem)) continue;
    ++judged;
    const std::vector<std::string> findings = judge(entry.line, kernel_under_test(GetParam()));
    EXPECT_TRUE(findings.empty()) << GetParam() << "\n" << report(entry.line, findings, GetParam());
  }
  if (judged == 0) GTEST_SKIP() << GetParam() << " refuses them, with a reason";
}

INSTANTIATE_TEST_SUITE_P(, TokenScales, testing::ValuesIn(host_kernels()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::test
