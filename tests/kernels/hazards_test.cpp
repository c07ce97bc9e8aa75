// SPDX-License-Identifier: Apache-2.0
// Every CPU kernel this machine can run x every hazard x every type and layout, against the fp64 reference.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/hazard_cases.h"
#include "kernels/host_kernels.h"
#include "kernels/judge.h"

namespace quire::test {
namespace {

using KernelAndHazard = std::tuple<std::string, Hazard>;
class Kernels : public testing::TestWithParam<KernelAndHazard> {};

TEST_P(Kernels, Hazard) {
  const auto& [kernel, hazard] = GetParam();
  const Attend attend = kernel_under_test(kernel);
  std::uint64_t seed = 1;
  std::int64_t judged = 0;
  for (const std::string& combination : type_combinations())
    for (const std::string& shape : hazard.shapes) {
      const ProblemLine line = hazard_line(combination, shape, seed++);
      ASSERT_FALSE(line.problem.reqs.empty() && shape.find("reqs=none") == std::string::npos) << combination << " " << shape;
      if (!takes(kernel, line.problem)) continue;
      ++judged;
      const std::vector<std::string> findings = judge(line, attend);
      EXPECT_TRUE(findings.empty()) << kernel << " " << hazard.name << "\n" << report(line, findings, kernel);
    }
  if (hazard.name == "OwnHeadDimOfV" && !takes_own_v(kernel)) GTEST_SKIP() << kernel << " refuses them, with a reason";
  const bool has_regions = hazard.name == "VisiblePrefix" || hazard.name == "Trees";
  if (has_regions && kernel == "cpu_amx") GTEST_SKIP() << kernel << " refuses them, with a reason";
  EXPECT_GT(judged, 0) << kernel << " takes no combination of types";
}

INSTANTIATE_TEST_SUITE_P(, Kernels, testing::Combine(testing::ValuesIn(host_kernels()), testing::ValuesIn(hazards())),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param).name; });

}  // namespace

}  // namespace quire::test
