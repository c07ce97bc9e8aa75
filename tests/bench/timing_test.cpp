// SPDX-License-Identifier: Apache-2.0
// Medians and intervals on samples whose answer is known, and how often the interval holds the true median.
#include "bench/timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace quire::bench_detail {
namespace {

TEST(Median, OfFewValues) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({1, 2, 10, 4}), 3);
}

std::vector<double> one_to(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  std::reverse(values.begin(), values.end());
  return values;
}

TEST(IntervalOf, TakesTheRanksOfTheTables) {  // distribution-free 95 % intervals for a median: n -> ranks
  struct Row {
    int n;
    double low, high;
  };
  for (const Row& row : {Row{6, 1, 6}, Row{8, 1, 8}, Row{9, 2, 8}, Row{12, 3, 10}, Row{15, 4, 12}, Row{25, 8, 18}}) {
    const Interval i = interval_of(one_to(row.n));
    EXPECT_EQ(i.low, row.low) << row.n;
    EXPECT_EQ(i.high, row.high) << row.n;
    EXPECT_EQ(i.median, (row.n + 1) / 2.0) << row.n;
    EXPECT_EQ(i.blocks, row.n);
  }
}

TEST(IntervalOf, FewBlocksGiveAWideOne) {
  const Interval i = interval_of({10, 12, 11});
  EXPECT_EQ(i.low, 8);
  EXPECT_EQ(i.high, 14);
  EXPECT_EQ(interval_of({}).blocks, 0);
}

TEST(IntervalOf, HoldsTheTrueMedianOfSkewedTimes) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> times(0, 0.5);  // median 1, long tail, as times have
  int held = 0;
  constexpr int kRuns = 2000;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<double> blocks(15);
    std::generate(blocks.begin(), blocks.end(), [&] { return times(random); });
    const Interval i = interval_of(blocks);
    held += i.low <= 1 && 1 <= i.high ? 1 : 0;
  }
  EXPECT_GE(held, kRuns * 95 / 100);
  EXPECT_LE(held, kRuns * 99 / 100) << "an interval that always holds it says nothing";
}

}  // namespace
}  // namespace quire::bench_detail
