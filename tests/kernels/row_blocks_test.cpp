// SPDX-License-Identifier: Apache-2.0
// Prompts with more rows than a kernel works on at once, at head_dims that have code of their own, where rows see all keys of a
// tile, a part of them, or only some rows do: values against the fp64 reference, rows, canaries, bits under repetition and
// threads.
#include <gtest/gtest.h>

#include "kernels/host_kernels.h"
#include "kernels/judge.h"

namespace quire::test {
namespace {

class RowBlocks : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(
    cpu_amx, RowBlocks,
    ::testing::Values("q=bf16 heads=4:1 d=64 page=16 reqs=70@200,20@600 lse=1 seed=1",
                      "q=bf16 heads=4:1 d=128 page=16 layout=hnd reqs=70@200,20@600 lse=1 seed=2",
                      "q=bf16 heads=3:1 d=64 page=16 reqs=85@150 window=100 lse=1 seed=3",
                      "q=bf16 kv=fp8_e4m3fn heads=4:1 d=64 page=16 reqs=70@200 kscale=tensor vscale=tensor seed=4",
                      "q=bf16 kv=fp8_e4m3fn heads=4:1 d=128 page=16 reqs=70@200/230 kscale=tensor vscale=tensor seed=5",
                      "q=bf16 heads=4:1 d=96 page=16 reqs=70@200 seed=6",
                      "q=bf16 heads=4:1 d=64 page=16 reqs=70@200 cap=20 seed=7"));

TEST_P(RowBlocks, PassOnEveryKernel) {
  const Result<ProblemLine> line = parse_problem_line(GetParam());
  ASSERT_TRUE(line.ok()) << line.status().message();
  for (const std::string& kernel : host_kernels()) {
    const std::vector<std::string> findings = judge(as_taken_by(kernel, line.value()), kernel_under_test(kernel));
    EXPECT_TRUE(findings.empty()) << kernel << "\n" << report(line.value(), findings);
  }
}

}  // namespace
}  // namespace quire::test
