// SPDX-License-Identifier: Apache-2.0
// compare(): classes before magnitudes, strides honoured, the worst element named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "numerics/tolerance.h"
#include "quire/tools/diagnose.hpp"
#include "support/small_case.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

/// Two tokens, two heads, three dims, each row a copy of one plausible row.
Reference small_reference() {
  Reference ref;
  ref.num_tokens = ref.num_q_heads = 2;
  ref.head_dim = ref.v_head_dim = 3;
  for (int i = 0; i < 12; ++i) {
    ref.out.push_back(0.1 * i - 0.5);
    ref.abs_pv.push_back(0.8);
    ref.abs_spv.push_back(4.0);
  }
  ref.lse.assign(4, 2.5);
  ref.score_mag.assign(4, 5.0);
  ref.num_keys.assign(4, 100);
  return ref;
}

struct Observed {
  Storage storage;
  Tensor out, lse;
  Observed(const Reference& ref, DType dtype, bool gap = false) {
    out = make_tensor(storage, dtype, {2, 2, 3}, gap);
    lse = make_tensor(storage, DType::f32, {2, 2}, gap);
    for (std::int64_t i = 0; i < 12; ++i) set(out, {i / 6, i / 3 % 2, i % 3}, ref.out[static_cast<std::size_t>(i)]);
    for (std::int64_t i = 0; i < 4; ++i) set(lse, {i / 2, i % 2}, ref.lse[static_cast<std::size_t>(i)]);
  }
};

TEST(Compare, AcceptsTheRoundedReferenceInEveryTypeAndStride) {
  const Reference ref = small_reference();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool gap : {false, true}) {
      const Observed seen(ref, dtype, gap);
      const Comparison c = compare(seen.out, seen.lse, ref);
      EXPECT_TRUE(c.ok) << c.text;
      EXPECT_EQ(c.num_elements, 16);
      EXPECT_LT(c.worst_ratio, 1.0);
    }
}

TEST(Compare, NamesTheWorstElementAndItsRatio) {
  const Reference ref = small_reference();
  const Observed seen(ref, DType::f32);
  set(seen.out, {1, 0, 2}, ref.out[8] + 0.25);
  set(seen.out, {0, 1, 1}, ref.out[4] - 0.01);
  const Comparison c = compare(seen.out, {}, ref);
  EXPECT_FALSE(c.ok);
  EXPECT_EQ(c.num_mismatches, 2);
  EXPECT_EQ(c.num_nonfinite_mismatches, 0);
  EXPECT_EQ(c.worst.token, 1);
  EXPECT_EQ(c.worst.head, 0);
  EXPECT_EQ(c.worst.dim, 2);
  EXPECT_NEAR(c.worst_ratio, 0.25 / c.worst.tolerance, 1e-3 * c.worst_ratio);
  ASSERT_EQ(c.first.size(), 2u);
  EXPECT_EQ(c.first[0].dim, 1);  // index order, not size
  EXPECT_THAT(c.text, HasSubstr("output[token 1, head 0, dim 2]"));
  EXPECT_THAT(c.text, HasSubstr("2 of 12 elements"));
}

TEST(Compare, NaNComesBeforeAnyFiniteError) {
  const Reference ref = small_reference();
  const Observed seen(ref, DType::bf16);
  set(seen.out, {0, 0, 0}, 1e30);
  set(seen.out, {1, 1, 1}, kNaN);
  const Comparison c = compare(seen.out, seen.lse, ref);
  EXPECT_EQ(c.num_mismatches, 2);
  EXPECT_EQ(c.num_nonfinite_mismatches, 1);
  EXPECT_TRUE(std::isnan(c.worst.observed));
  EXPECT_THAT(c.text, HasSubstr("NaN"));
}

/// Row of: expected, observed, fine?
struct ClassCase {
  double expected, observed;
  bool ok;
};
TEST(Compare, ClassesMustAgree) {
  for (const ClassCase& t : {ClassCase{kNaN, kNaN, true},
                             {kNaN, 0.0, false},
                             {kNaN, kInf, false},
                             {0.0, kNaN, false},
                             {kInf, kInf, true},
                             {kInf, -kInf, false},
                             {kInf, 1.0, false},
                             {1.0, kInf, false},
                             {-kInf, -kInf, true}}) {
    Reference ref = small_reference();
    const Observed seen(ref, DType::f32);
    ref.out[7] = t.expected;
    set(seen.out, {1, 0, 1}, t.observed);
    EXPECT_EQ(compare(seen.out, {}, ref).ok, t.ok) << t.expected << " " << t.observed;
  }
}

TEST(Compare, OverflowOfTheOutputTypeIsInfinity) {
  Reference ref = small_reference();
  const Observed seen(ref, DType::f16);
  ref.out[7] = 70000.0;
  ref.abs_pv[7] = 70000.0;
  set(seen.out, {1, 0, 1}, kInf);
  EXPECT_TRUE(compare(seen.out, {}, ref).ok);
  set(seen.out, {1, 0, 1}, 65504.0);  // clamped instead
  EXPECT_FALSE(compare(seen.out, {}, ref).ok);
  ref.out[7] = 65519.0;  // a value on the border allows either result
  set(seen.out, {1, 0, 1}, kInf);
  EXPECT_TRUE(compare(seen.out, {}, ref).ok);
  set(seen.out, {1, 0, 1}, 65504.0);
  EXPECT_TRUE(compare(seen.out, {}, ref).ok);
}

TEST(Compare, LseIsJudgedToo) {
  Reference ref = small_reference();
  ref.lse[1] = -kInf;
  const Observed seen(ref, DType::bf16);
  EXPECT_TRUE(compare(seen.out, seen.lse, ref).ok);
  set(seen.lse, {0, 1}, -1e30);  // a large negative stand-in
  const Comparison stand_in = compare(seen.out, seen.lse, ref);
  EXPECT_EQ(stand_in.num_nonfinite_mismatches, 1);
  EXPECT_THAT(stand_in.text, HasSubstr("lse[token 0, head 1]"));
  set(seen.lse, {0, 1}, -kInf);
  set(seen.lse, {1, 0}, 2.5 / std::log(2.0));  // base 2
  EXPECT_EQ(compare(seen.out, seen.lse, ref).num_mismatches, 1);
}

TEST(Compare, UnwrittenRowsAreMismatches) {
  const Reference ref = small_reference();
  Observed seen(ref, DType::f16);
  for (std::int64_t d = 0; d < 3; ++d) set(seen.out, {1, 1, d}, kNaN);
  EXPECT_EQ(compare(seen.out, {}, ref).num_nonfinite_mismatches, 3);
}

TEST(Compare, WrongShapesAreRefusedInWords) {
  const Reference ref = small_reference();
  Storage storage;
  const Comparison c = compare(make_tensor(storage, DType::f32, {2, 3, 2}), {}, ref);
  EXPECT_FALSE(c.ok);
  EXPECT_EQ(c.text, "output is f32 [2, 3, 2], the reference [2, 2, 3]");
  const Observed seen(ref, DType::f32);
  EXPECT_FALSE(compare(seen.out, make_tensor(storage, DType::f16, {2, 2}), ref).ok);
}

/// An f32 result that went through f16 is off by f16's roundoff, which no f32 kernel is.
TEST(Compare, JudgesByTheTypeOfTheBatch) {
  Reference ref = small_reference();
  const Observed seen(ref, DType::f16);
  EXPECT_TRUE(compare(seen.out, {}, ref).ok) << "a reference that knows no batch";
  ref.output = DType::f32;
  const Comparison c = compare(seen.out, {}, ref);
  EXPECT_FALSE(c.ok);
  EXPECT_THAT(c.text, HasSubstr("the output is f16, judged as the batch's f32"));
  ref.output = DType::bf16;
  EXPECT_TRUE(compare(Observed(ref, DType::f32).out, {}, ref).ok) << "a bf16 result that was widened";
}

TEST(Compare, EmptyBatchesAreFineAndSaySo) {
  Reference ref;
  ref.num_q_heads = 2;
  ref.head_dim = ref.v_head_dim = 3;
  Storage storage;
  const Comparison c = compare(make_tensor(storage, DType::f32, {0, 2, 3}), {}, ref);
  EXPECT_TRUE(c.ok);
  EXPECT_EQ(c.text, "nothing to compare: no elements");
}

}  // namespace
}  // namespace quire::test
