// SPDX-License-Identifier: Apache-2.0
// The oracle's two loops: every instruction set of this machine gives the bits of a loop that anybody can read.
#include "backend/reference/lanes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace quire::test {
namespace {

using reference_detail::kLanes;
using reference_detail::Lanes;
using reference_detail::Loops;

constexpr std::int64_t kCount = 131;

/// Values of any size, so that a product rounded or not before it is added shows in the last bit.
std::vector<double> values(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> list(static_cast<std::size_t>(count));
  for (double& x : list) x = normal(random) * std::exp(normal(random));
  return list;
}

/// Volatile: no compiler may keep more bits of the product than a double has.
double rounded(double x) {
  const volatile double kept = x;
  return kept;
}

struct Weights {
  std::vector<double> p = values(kCount, 2), floored = values(kCount, 3), scored = values(kCount, 4);
};

Lanes plain_sum(const std::vector<double>& weight, const std::vector<double>& v, double (*of)(double)) {
  Lanes lanes{};
  for (std::int64_t n = 0; n < kCount; ++n)
    for (std::int64_t i = 0; i < kLanes; ++i)
      lanes.sum[i] += rounded(weight[static_cast<std::size_t>(n)] * of(v[static_cast<std::size_t>(n * kLanes + i)]));
  return lanes;
}

double same(double x) { return x; }
double size(double x) { return std::fabs(x); }

/// Bits; NaN equals NaN, as IEEE 754 leaves open which one a sum keeps.
void expect_bits(const Lanes& got, const Lanes& expected, const char* what) {
  for (std::int64_t i = 0; i < kLanes; ++i) {
    if (std::isnan(expected.sum[i]) && std::isnan(got.sum[i])) continue;
    EXPECT_EQ(std::memcmp(&got.sum[i], &expected.sum[i], sizeof(double)), 0)
        << what << " lane " << i << ": " << got.sum[i] << ", expected " << expected.sum[i];
  }
}

void expect_plain_sums(const std::vector<double>& v) {
  const Weights w;
  std::vector<double> size_of_p = w.p;
  for (double& x : size_of_p) x = std::fabs(x);
  for (const Loops& loops : reference_detail::available_loops()) {
    SCOPED_TRACE(loops.name);
    Lanes a, b, c;
    loops.dot(v.data(), w.p.data(), kCount, a, b);
    expect_bits(a, plain_sum(w.p, v, same), "dot");
    expect_bits(b, plain_sum(size_of_p, v, size), "magnitude");
    loops.sum(v.data(), w.p.data(), w.floored.data(), w.scored.data(), kCount, a, b, c);
    expect_bits(a, plain_sum(w.p, v, same), "out");
    expect_bits(b, plain_sum(w.floored, v, size), "absolute");
    expect_bits(c, plain_sum(w.scored, v, size), "scored");
  }
}

TEST(Lanes, EveryInstructionSetGivesTheBitsOfThePlainLoop) { expect_plain_sums(values(kCount * kLanes, 1)); }

TEST(Lanes, NaNAndInfinityStayInTheirLane) {
  std::vector<double> v = values(kCount * kLanes, 1);
  v[5 * kLanes + 3] = std::numeric_limits<double>::quiet_NaN();
  v[6 * kLanes + 31] = std::numeric_limits<double>::infinity();
  v[7 * kLanes + 17] = std::numeric_limits<double>::denorm_min();
  expect_plain_sums(v);
}

// The check itself: a fused multiply-add must differ somewhere, or bits prove nothing here.
TEST(Lanes, AFusedProductWouldBeSeen) {
  const Weights w;
  const std::vector<double> v = values(kCount * kLanes, 1);
  const Lanes plain = plain_sum(w.p, v, same);
  int different = 0;
  for (std::int64_t i = 0; i < kLanes; ++i) {
    double fused = 0;
    for (std::int64_t n = 0; n < kCount; ++n)
      fused = std::fma(w.p[static_cast<std::size_t>(n)], v[static_cast<std::size_t>(n * kLanes + i)], fused);
    different += fused != plain.sum[i] ? 1 : 0;
  }
  EXPECT_GT(different, kLanes / 2);
}

TEST(Lanes, TheBaselineIsAlwaysThere) {
  EXPECT_STREQ(reference_detail::available_loops().back().name, "baseline");
  EXPECT_STREQ(reference_detail::widest_loops().name, reference_detail::available_loops().front().name);
}

}  // namespace
}  // namespace quire::test
