// SPDX-License-Identifier: Apache-2.0
// Laws of the running softmax: identity, commutative, associative within n ulp, empty-safe.
#include "semantics/softmax_state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace quire::test {
namespace {

using semantics::combine;
using semantics::Merged;
using semantics::SoftmaxState;

const SoftmaxState kEmpty{};
constexpr float kUnit = 0x1p-24f;

bool same_bits(const SoftmaxState& a, const SoftmaxState& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// States of one or several keys with scores of very different sizes, the empty state among them.
std::vector<SoftmaxState> samples() {
  std::mt19937 random(7);
  std::vector<SoftmaxState> list{kEmpty, {0.0f, 1.0f}, {-87.0f, 1.0f}, {1000.0f, 3.0f}, {-1e30f, 1.0f}, {3e38f, 2.0f}};
  std::normal_distribution<float> score(0.0f, 10.0f);
  std::uniform_real_distribution<float> sum(1.0f, 1000.0f);
  for (int i = 0; i < 40; ++i) list.push_back({score(random), sum(random)});
  return list;
}

TEST(SoftmaxState, EmptyIsTheIdentityToTheBit) {
  for (const SoftmaxState& s : samples()) {
    const Merged left = combine(kEmpty, s), right = combine(s, kEmpty);
    EXPECT_TRUE(same_bits(left.state, s) && same_bits(right.state, s)) << s.max;
    EXPECT_EQ(right.weight_a, 1.0f);
    EXPECT_EQ(right.weight_b, 0.0f);
    if (s.max != -INFINITY) {
      EXPECT_EQ(left.weight_b, 1.0f);
    }
  }
}

TEST(SoftmaxState, TwoEmptySetsMakeAnEmptySetWithoutNaN) {
  const Merged m = combine(kEmpty, kEmpty);
  EXPECT_TRUE(same_bits(m.state, kEmpty));
  EXPECT_EQ(semantics::log_sum_exp(m.state), -INFINITY);
}

struct Exp2 {
  static float exp(float x) { return std::exp2(x); }
};

// Kernels keep maxima in base 2. The union is that of natural states, but for its unit.
TEST(SoftmaxState, InBase2IsTheSameUnion) {
  for (const SoftmaxState& a : samples())
    for (const SoftmaxState& b : samples()) {
      if (std::fabs(a.max) > 1e20f || std::fabs(b.max) > 1e20f) continue;  // log2(e) of them may not fit
      const Merged natural = combine(a, b);
      const Merged base2 = semantics::combine<Exp2>({a.max * semantics::kLog2e, a.sum}, {b.max * semantics::kLog2e, b.sum});
      EXPECT_EQ(base2.state.max, natural.state.max * semantics::kLog2e);
      // The rounding of maxima, which are exponents, and of subnormal results.
      const float by_rounding = 4e-7f * (1.0f + std::fabs(a.max) + std::fabs(b.max)), least = 0x1p-149f;
      const auto tolerance = [&](float x) { return least + (std::isfinite(by_rounding) ? by_rounding * std::fabs(x) : 0.0f); };
      EXPECT_NEAR(base2.state.sum, natural.state.sum, tolerance(natural.state.sum));
      EXPECT_NEAR(base2.weight_a, natural.weight_a, tolerance(natural.weight_a));
      EXPECT_NEAR(base2.weight_b, natural.weight_b, tolerance(natural.weight_b));
    }
}

TEST(SoftmaxState, WeightsAreThoseOfTheUnion) {
  for (const SoftmaxState& a : samples())
    for (const SoftmaxState& b : samples()) {
      const Merged merged = combine(a, b), base2 = semantics::combine<Exp2>(a, b);
      if (a.max == -INFINITY && b.max == -INFINITY) continue;  // both sums are 0, so every weight is right
      EXPECT_EQ(semantics::weight_in(a.max, merged.state.max), merged.weight_a);
      EXPECT_EQ(semantics::weight_in(b.max, merged.state.max), merged.weight_b);
      EXPECT_EQ(semantics::weight_in<Exp2>(a.max, base2.state.max), base2.weight_a);
    }
  EXPECT_EQ(semantics::weight_in(-INFINITY, -INFINITY), 0.0f) << "no NaN of empty sets";
}

TEST(SoftmaxState, CommutativeToTheBit) {
  for (const SoftmaxState& a : samples())
    for (const SoftmaxState& b : samples()) {
      const Merged ab = combine(a, b), ba = combine(b, a);
      EXPECT_TRUE(same_bits(ab.state, ba.state)) << a.max << " " << b.max;
      if (a.max == -INFINITY && b.max == -INFINITY) continue;  // either empty side may carry the weight 1 of nothing
      EXPECT_EQ(ab.weight_a, ba.weight_b);
      EXPECT_EQ(ab.weight_b, ba.weight_a);
    }
}

TEST(SoftmaxState, AssociativeWithinAFewUlp) {
  const std::vector<SoftmaxState> list = samples();
  for (const SoftmaxState& a : list)
    for (const SoftmaxState& b : list)
      for (const SoftmaxState& c : list) {
        const SoftmaxState left = combine(combine(a, b).state, c).state, right = combine(a, combine(b, c).state).state;
        ASSERT_EQ(left.max, right.max);
        // exp(x - y) exp(y - z) against exp(x - z): each argument carries u |x - y|, each exp and product a few u.
        const float reach = std::isinf(left.max) ? 0.0f : std::min(104.0f, std::fabs(a.max - c.max) + std::fabs(b.max - c.max));
        ASSERT_NEAR(left.sum, right.sum, (16 + 4 * reach) * kUnit * left.sum) << a.max << " " << b.max << " " << c.max;
      }
}

TEST(SoftmaxState, WeightsBringBothSidesToTheUnion) {
  for (const SoftmaxState& a : samples())
    for (const SoftmaxState& b : samples()) {
      const Merged m = combine(a, b);
      ASSERT_EQ(m.state.max, std::max(a.max, b.max));
      ASSERT_NEAR(m.state.sum, a.sum * m.weight_a + b.sum * m.weight_b, 4 * kUnit * m.state.sum);
      ASSERT_FALSE(std::isnan(m.state.sum) || std::isnan(m.weight_a) || std::isnan(m.weight_b));
    }
}

TEST(SoftmaxState, FoldingKeysOneByOneGivesTheLogSumExp) {
  std::mt19937 random(3);
  std::normal_distribution<float> score(0.0f, 5.0f);
  SoftmaxState state;
  double exact = 0;
  for (int k = 0; k < 1000; ++k) {
    const float s = score(random);
    state = combine(state, SoftmaxState{s, 1.0f}).state;
    exact += std::exp(static_cast<double>(s));
  }
  EXPECT_NEAR(semantics::log_sum_exp(state), std::log(exact), 1e-4);
}

TEST(SoftmaxState, ASinkAddsToTheSumAlone) {
  const Merged none = semantics::combine_sink({2.0f, 3.0f}, -INFINITY);
  EXPECT_TRUE(same_bits(none.state, {2.0f, 3.0f}));
  const Merged big = semantics::combine_sink({2.0f, 3.0f}, 2.0f);
  EXPECT_EQ(big.state.sum, 4.0f);
  const Merged alone = semantics::combine_sink(kEmpty, 1.5f);
  EXPECT_EQ(semantics::log_sum_exp(alone.state), 1.5f);
}

TEST(SoftmaxState, AFinishedPartialIsAStateAgain) {
  EXPECT_TRUE(same_bits(semantics::from_lse(-INFINITY), kEmpty));
  EXPECT_EQ(semantics::log_sum_exp(semantics::from_lse(-3.25f)), -3.25f);
}

}  // namespace
}  // namespace quire::test
