// SPDX-License-Identifier: Apache-2.0
// Numbers at the end of f32's range, on every CPU kernel of this machine: what numerics.md says of them ("Where f32 ends"). An
// output is right, or it is infinite or NaN; it is never another number.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/host_kernels.h"
#include "kernels/judge.h"
#include "numerics/tolerance.h"
#include "support/small_case.h"

namespace quire::test {
namespace {

class WhereF32Ends : public testing::TestWithParam<std::string> {
 protected:
  /// A case of the line as the kernel takes it.
  static Case case_of(const char* line) { return made(as_taken_by(GetParam(), parse_problem_line(line).value())); }

  struct Counts {
    std::int64_t finite = 0, others = 0;
  };
  /// Attends, and demands that every finite element is within its tolerance, `more`, and this part of itself, or is a zero that
  /// may be.
  static Counts judged(const Case& c, double more = 0, double of_itself = 0, bool may_be_zero = false) {
    const verify_detail::Prepared p = prepared(c);
    const Tensor& out = p.c.batch.output;
    std::int64_t written = 0;
    EXPECT_TRUE(kernel_under_test(GetParam())(p.c, 2, written).ok());
    Counts counts;
    const Reference& r = p.expected;
    for (std::int64_t i = 0; i < r.num_tokens * r.num_q_heads * r.v_head_dim; ++i) {
      const std::int64_t dim = i % r.v_head_dim, row = i / r.v_head_dim;
      const double got = at(out, {row / r.num_q_heads, row % r.num_q_heads, dim});
      ++(std::isfinite(got) ? counts.finite : counts.others);
      if (!std::isfinite(got)) continue;
      const double expected = r.out[static_cast<std::size_t>(i)];
      const double most =
          numerics::output_tolerance(r, row, i, numerics::output_type(out.dtype)) + more + of_itself * std::fabs(expected);
      if (got == 0 && may_be_zero) continue;
      EXPECT_LE(std::fabs(got - expected), most) << GetParam() << " row " << row << " dim " << dim;
    }
    return counts;
  }
};

/// Sums are divided by their weights at the end.
TEST_P(WhereF32Ends, AVThatOverflowsSumsIsRightOrInfinite) {
  const Case c = case_of("q=f32 heads=2:1 d=16 page=16 reqs=1@40,20@3 seed=2");
  const Tensor& v = c.cache.v;
  for (std::int64_t i = 0; i < v.shape[0] * v.shape[1] * v.shape[2]; ++i)
    for (std::int64_t d = 0; d < 4; ++d) {
      const std::int64_t head = i % v.shape[2], slot = i / v.shape[2] % v.shape[1], page = i / v.shape[2] / v.shape[1];
      set(v, {page, slot, head, d}, d % 2 == 0 ? 3e38 : 1e37);
    }
  const Counts counts = judged(c);
  EXPECT_GT(counts.finite, 0);
  EXPECT_GT(counts.others, 0) << "no sum overflowed";
}

/// Slopes so steep that slope * distance is beyond f32: a score of +inf makes a row NaN.
TEST_P(WhereF32Ends, ScoresBeyondF32AreNaN) {
  const Case c = case_of("q=f32 heads=2:1 d=16 page=16 alibi=1 reqs=1@40,20@3 seed=2");
  set(c.options.alibi_slopes, {0}, -1e38);
  const Counts counts = judged(c);
  EXPECT_GT(counts.finite, 0);
  EXPECT_GT(counts.others, 0);
}

/// v_scale / D is a multiple of 2^-149 before it multiplies a sum, and so are products and sums. The tile unit of cpu_amx takes
/// operands below 2^-126 for 0 (Intel SDM, TDPBF16PS: denormals are zeros), and its weights are multiplied by v_scale.
TEST_P(WhereF32Ends, ASubnormalScaleCostsHalfAUnitOfItself) {
  const Case c = case_of("q=f32 kv=fp8_e4m3fn vscale=tensor heads=2:1 d=16 page=16 reqs=1@40,20@3 seed=2");
  constexpr double kScale = 1e-42, kMostKeys = 41;  // D is at most the number of keys
  *static_cast<float*>(c.cache.v_scale.data) = static_cast<float>(kScale);
  EXPECT_EQ(judged(c, 2 * kMostKeys * 0x1p-149, kMostKeys * 0x1p-150 / kScale, GetParam() == "cpu_amx").others, 0);
}

INSTANTIATE_TEST_SUITE_P(, WhereF32Ends, testing::ValuesIn(host_kernels()), [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::test
