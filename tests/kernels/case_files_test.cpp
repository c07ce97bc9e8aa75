// SPDX-License-Identifier: Apache-2.0
// Every line of tests/cases on every kernel of this machine: values against the fp64 reference, rows, canaries, bits under
// repetition, threads and other poison. HugeOffsets is left out: 5 GiB a line (see the file).
#include <gtest/gtest.h>

#include "capture/cases.h"
#include "kernels/host_kernels.h"
#include "kernels/judge.h"

namespace quire::test {
namespace {

std::vector<std::string> files() {
  std::vector<std::string> names = {"Batches"};
  for (const std::string& name : hazards())
    if (name != "HugeOffsets") names.push_back(name);
  return names;
}

class CaseFiles : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cases, CaseFiles, ::testing::ValuesIn(files()), [](const auto& row) { return row.param; });

TEST_P(CaseFiles, PassOnEveryKernel) {
  ASSERT_FALSE(host_kernels().empty());
  for (const ProblemLine& line : load_cases(GetParam())) {
    for (const std::string& kernel : host_kernels()) {
      const std::vector<std::string> findings = judge(as_taken_by(kernel, line), kernel_under_test(kernel));
      EXPECT_TRUE(findings.empty()) << kernel << "\n" << report(line, findings);
    }
  }
}

}  // namespace
}  // namespace quire::test
