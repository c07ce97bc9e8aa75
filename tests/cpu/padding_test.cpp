// SPDX-License-Identifier: Apache-2.0
// attend() on a CPU with rows behind the last start: never read, and left or made zero, whatever the strides of the output.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/judge.h"
#include "quire/attention.hpp"

namespace quire::test {
namespace {

ProblemLine line(const std::string& text) { return parse_problem_line(text).value(); }
Attend widest_kernel(const std::string& text) { return kernel_under_test(plan(line(text).problem, host_device())->kernel); }

TEST(Padding, RowsOfRequestsKeepTheirBits) {
  const std::string requests = "q=bf16 heads=8:2 d=64 page=16 reqs=70@33,1@2500,3@40 lse=1 seed=3";
  std::vector<std::string> findings;
  const Attend attend = widest_kernel(requests);
  const auto plain = run_guarded(make_case(line(requests)).value(), attend, Spread::contiguous, 2, nullptr, findings);
  for (const char* pad : {" pad=6", " pad=6:zero", " pad=0", " pad=0:zero"}) {
    auto padded = run_guarded(make_case(line(requests + pad)).value(), attend, Spread::contiguous, 2, nullptr, findings);
    padded.output.resize(plain.output.size());
    padded.lse.resize(plain.lse.size());
    EXPECT_EQ(plain, padded) << pad;
  }
  EXPECT_TRUE(findings.empty()) << report(line(requests), findings);
}

TEST(Padding, ZeroRowsAreZeroAndTheirLseMinusInfinity) {
  const std::string padded = "q=f32 heads=4:2 d=16 page=4 reqs=5@9,1@30,2x0 lse=1 sinks=1 seed=4 pad=3:zero";
  const Case made = make_case(line(padded)).value();
  const Attend attend = widest_kernel(padded);
  for (const Spread spread : {Spread::contiguous, Spread::gaps_between_heads, Spread::every_other_element}) {
    std::vector<std::string> findings;
    const auto run = run_guarded(made, attend, spread, 1, nullptr, findings);
    ASSERT_TRUE(findings.empty()) << findings.front();
    for (std::size_t i = 6 * 64; i < 9 * 64; ++i) ASSERT_EQ(run.output[i], 0u) << i;
    for (std::size_t i = 6 * 4; i < 9 * 4; ++i)
      ASSERT_EQ(run.lse[i], semantics::float_to_bits(-std::numeric_limits<float>::infinity())) << i;
  }
}

/// A refused call writes no padding row either.
TEST(Padding, IsNotWrittenByARefusedCall) {
  const Case made = make_case(line("q=f32 heads=4:2 d=16 page=4 reqs=5@9,1@30 lse=1 seed=4 pad=3:zero")).value();
  const Plan planned = plan(made.batch, made.cache, made.options).value();
  static_cast<std::int32_t*>(made.batch.block_table.data)[0] = 1 << 30;
  std::int64_t rows = 0;
  EXPECT_EQ(attend_planned(planned, made, 1, rows).rule(), "Q-T03");
  for (std::int64_t i = 0; i < made.batch.output.num_elements(); ++i)
    ASSERT_TRUE(std::isnan(static_cast<const float*>(made.batch.output.data)[i])) << i;
}

}  // namespace
}  // namespace quire::test
