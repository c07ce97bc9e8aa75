// The tolerance for kernels that round softmax weights: it pays for that rounding, exactly, and for no more.
#include <gtest/gtest.h>

#include "diagnose/tolerance.h"
#include "quire/capture.hpp"
#include "quire/diagnose.hpp"

namespace quire {
namespace {

Reference expected_of(const char* line) {
  Case c = make_case(parse_problem_line(line).value()).value();
  return reference(c.batch, c.cache, c.options).value();
}

TEST(RoundedWeights, AddsTheRoundoffTimesTheSumOfWeightedValues) {
  const Reference strict = expected_of("q=f16 heads=2 d=8 page=4 reqs=3@20,1@7 seed=1");
  for (DType weights : {DType::f16, DType::bf16}) {
    Reference wide = strict;
    allow_rounded_weights(wide, weights);
    const numerics::OutputType type = numerics::output_type(DType::f16);
    const double roundoff = weights == DType::f16 ? 0x1p-11 : 0x1p-8;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(strict.out.size()); ++i) {
      const auto e = static_cast<std::size_t>(i);
      const double more = numerics::output_tolerance(wide, i / 8, i, type) - numerics::output_tolerance(strict, i / 8, i, type);
      EXPECT_NEAR(more, numerics::kSecondOrder * roundoff * strict.abs_pv[e], 1e-9 * strict.abs_pv[e]);
    }
    EXPECT_EQ(wide.out, strict.out);
    EXPECT_EQ(wide.lse, strict.lse);
  }
}

TEST(RoundedWeights, WidensTheTokensThatAreNamed) {
  const Reference strict = expected_of("q=f16 heads=2 d=8 page=4 reqs=3@20,1@7 seed=1");
  Reference all = strict, some = strict;
  allow_rounded_weights(all, DType::bf16);
  allow_rounded_weights(some, DType::bf16, {true, false, false, true});
  for (std::size_t i = 0; i < strict.abs_pv.size(); ++i) {
    const std::size_t token = i / (2 * 8);
    EXPECT_EQ(some.abs_pv[i], token == 0 || token == 3 ? all.abs_pv[i] : strict.abs_pv[i]) << i;
  }
}

TEST(RoundedWeights, ChangesNothingForF32) {
  const Reference strict = expected_of("q=f32 heads=2 d=8 page=4 reqs=3@20");
  Reference same = strict;
  allow_rounded_weights(same, DType::f32);
  EXPECT_EQ(same.abs_pv, strict.abs_pv);
}

}  // namespace
}  // namespace quire
