// SPDX-License-Identifier: Apache-2.0
// attend() on a CPU with rows behind the last start: never read, and left or made zero, whatever the strides of the output.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/judge.h"
#include "quire/attention.hpp"
#include "verify/guarded.h"

namespace quire::test {
namespace {

using verify_detail::Guarded;
using verify_detail::Spread;

ProblemLine line(const std::string& text) { return parse_problem_line(text).value(); }
Attend widest_kernel(const std::string& text) { return kernel_under_test(plan(line(text).problem, host_device())->kernel); }

struct Rows {
  std::vector<std::byte> output, lse;
};

/// Output and lse of a sound call that writes into guarded memory.
Rows attended(const Case& made, const Attend& attend, Spread spread, int num_threads) {
  Case c = made;
  Guarded output(c.batch.output, spread), lse(c.batch.lse, spread);
  c.batch.output = output.view;
  c.batch.lse = lse.view;
  std::int64_t rows = 0;
  const Status s = attend(c, num_threads, rows);
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(rows, num_request_rows(c.batch) * c.batch.query.shape[1]);
  Rows written{output.take(), lse.take()};
  EXPECT_EQ(output.damaged() + lse.damaged(), 0);
  return written;
}

TEST(Padding, RowsOfRequestsKeepTheirBits) {
  const std::string requests = "q=bf16 heads=8:2 d=64 page=16 reqs=70@33,1@2500,3@40 lse=1 seed=3";
  const Attend attend = widest_kernel(requests);
  const Rows plain = attended(made(line(requests)), attend, Spread::contiguous, 2);
  for (const char* pad : {" pad=6", " pad=6:zero", " pad=0", " pad=0:zero"}) {
    const Case c = made(line(requests + pad));
    Rows padded = attended(c, attend, Spread::contiguous, 2);
    if (c.batch.padding == Padding::left) {
      const std::vector<std::byte> behind(padded.output.begin() + static_cast<std::ptrdiff_t>(plain.output.size()),
                                          padded.output.end());
      EXPECT_EQ(behind, verify_detail::fill_pattern(DType::bf16, static_cast<std::int64_t>(behind.size()) / 2)) << pad;
    }
    padded.output.resize(plain.output.size());
    padded.lse.resize(plain.lse.size());
    EXPECT_EQ(plain.output, padded.output) << pad;
    EXPECT_EQ(plain.lse, padded.lse) << pad;
  }
}

TEST(Padding, ZeroRowsAreZeroAndTheirLseMinusInfinity) {
  const std::string padded = "q=f32 heads=4:2 d=16 page=4 reqs=5@9,1@30,2x0 lse=1 sinks=1 seed=4 pad=3:zero";
  const Case c = made(line(padded));
  const Attend attend = widest_kernel(padded);
  for (const Spread spread : {Spread::contiguous, Spread::gaps, Spread::apart}) {
    const Rows rows = attended(c, attend, spread, 1);
    for (std::int64_t i = 6 * 64; i < 9 * 64; ++i)
      ASSERT_EQ(semantics::float_to_bits(semantics::load(rows.output.data(), DType::f32, i)), 0u) << i;
    for (std::int64_t i = 6 * 4; i < 9 * 4; ++i)
      ASSERT_EQ(semantics::load(rows.lse.data(), DType::f32, i), -std::numeric_limits<float>::infinity()) << i;
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
