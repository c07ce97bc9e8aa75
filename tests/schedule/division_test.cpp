// SPDX-License-Identifier: Apache-2.0
// src/schedule/division.h: tiles of the short list counted key by key, and SMs of the long one against its share of the work.
#include "schedule/division.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "schedule/shares.h"

namespace quire::schedule {
namespace {

constexpr Division kDivision{.all_units = 132, .long_weight = 7};

/// The tiles that hold a key which some row sees: key <= position, and position - key < window.
std::int64_t tiles_by_key(std::int64_t query_len, std::int64_t context_len, std::int64_t window) {
  std::set<std::int64_t> tiles;
  for (std::int64_t position = context_len; position < context_len + query_len; ++position)
    for (std::int64_t key = 0; key <= position; ++key)
      if (window == 0 || position - key < window) tiles.insert(key / kShortTileKeys);
  return static_cast<std::int64_t>(tiles.size());
}

TEST(DivisionOfSms, TilesOfTheShortListHoldEveryVisibleKey) {
  ShareArgs<std::int32_t> args;
  args.group = 4, args.work.min_rows = 16;
  for (const std::int32_t window : {0, 1, 63, 64, 65, 130})
    for (std::int64_t query_len = 0; query_len <= 6; ++query_len)
      for (const std::int64_t context_len : {0, 1, 58, 59, 60, 61, 62, 63, 64, 127, 128, 191, 300}) {
        args.window = window;
        const bool is_short = query_len > 0 && query_len * args.group <= args.work.min_rows;
        ASSERT_EQ(short_tiles_of(args, query_len, context_len), is_short ? tiles_by_key(query_len, context_len, window) : 0)
            << query_len << " rows behind " << context_len << " keys, window " << window;
      }
}

TEST(DivisionOfSms, SmsFollowTheWork) {
  for (const std::int32_t all : {4, 132, 148})
    for (const std::int16_t weight : {std::int16_t{1}, std::int16_t{7}, std::int16_t{30}})
      for (std::int64_t of_long = 1; of_long < std::int64_t{1} << 40; of_long = of_long * 3 + 1)
        for (std::int64_t of_short = 1; of_short < std::int64_t{1} << 40; of_short = of_short * 5 + 2) {
          const std::int32_t units = units_for_long(of_long, of_short, {.all_units = all, .long_weight = weight});
          const double work = static_cast<double>(of_long) * weight;
          const double wanted = all * work / (work + static_cast<double>(of_short));
          ASSERT_EQ(units % 2, 0);
          ASSERT_TRUE(units >= 2 && units <= all - 2) << units << " of " << all;
          ASSERT_LE(std::abs(units - std::clamp(wanted, 2.0, all - 2.0)), 2.0) << of_long << " and " << of_short << " tiles";
        }
}

TEST(DivisionOfSms, NobodyWithWorkIsLeftWithoutSms) {
  EXPECT_EQ(units_for_long(0, 1000, kDivision), 0);
  EXPECT_EQ(units_for_long(0, 0, kDivision), 0);
  EXPECT_EQ(units_for_long(1, 0, kDivision), 132);
  EXPECT_EQ(units_for_long(1, 1 << 30, kDivision), 2);
  EXPECT_EQ(units_for_long(1 << 30, 1, kDivision), 130);
  EXPECT_EQ(units_for_long(100, 700, kDivision), 66);
}

}  // namespace
}  // namespace quire::schedule
