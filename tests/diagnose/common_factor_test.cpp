// SPDX-License-Identifier: Apache-2.0
// The analysis of variance that tells a wrong factor from rounding.
#include "diagnose/find_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace quire::diagnose_detail {
namespace {

/// Cells of noise 1 per dim, and in group g a factor on direction (1, 1, ...): 16 dims, two groups.
std::vector<Projection> cells(std::size_t count, double first, double second, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Projection> list;
  for (std::size_t i = 0; i < count; ++i) {
    Projection p;
    p.group = static_cast<std::int64_t>(i % 2);
    for (int d = 0; d < 16; ++d) p.add((i % 2 == 0 ? first : second) + normal(random), 1.0);
    p.noise = 16;
    list.push_back(p);
  }
  return list;
}

TEST(CommonFactor, IsNotSeenInNoise) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    EXPECT_FALSE(have_common_factor(cells(64, 0, 0, seed), 0)) << seed;
    EXPECT_FALSE(have_common_factor(cells(10, 0, 0, seed), 0)) << seed;
  }
}

TEST(CommonFactor, OfAGroupIsSeenThoughTheMeanOfAllIsZero) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) EXPECT_TRUE(have_common_factor(cells(64, 3, -3, seed), 0)) << seed;
}

TEST(CommonFactor, AsLargeAsALawfulOneIsNoFinding) {
  EXPECT_TRUE(have_common_factor(cells(64, 3, 3, 1), 0));
  EXPECT_FALSE(have_common_factor(cells(64, 3, 3, 1), 4));
}

TEST(CommonFactor, NeedsMoreCellsThanGroups) {
  EXPECT_FALSE(have_common_factor(cells(8, 30, 30, 1), 0));
  EXPECT_FALSE(have_common_factor({}, 0));
}

TEST(CommonFactor, IgnoresCellsThatSayNothing) {
  std::vector<Projection> list = cells(64, 3, 3, 2);
  for (Projection& p : list) p.noise = 0;
  EXPECT_FALSE(have_common_factor(list, 0));
}

}  // namespace
}  // namespace quire::diagnose_detail
