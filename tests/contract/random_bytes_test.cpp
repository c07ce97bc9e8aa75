// SPDX-License-Identifier: Apache-2.0
// The laws that the fuzzer checks (fuzz/batch_laws.h), on seeded random bytes: a small, deterministic share of a fuzz run.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "../../fuzz/batch_laws.h"

namespace quire::fuzz {
namespace {

TEST(RandomBytes, KeepTheLaws) {
  Tally tally;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::uint8_t> data(158 + seed % 3);  // The length says whether requests share pages.
    for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(random());
    ASSERT_EQ(broken_law(data, tally), "") << "seed " << seed;
  }
  // The power of this test: both sides of every law were taken often.
  EXPECT_GT(tally.clean, 300);
  EXPECT_GT(tally.refused, 300);
  EXPECT_GT(tally.compared, 100);
  EXPECT_GT(tally.appended, 50);
  EXPECT_GT(tally.merged, 300);
  EXPECT_GT(tally.lists_clean, 60);
  EXPECT_GT(tally.lists_compared, 40);
  EXPECT_GT(tally.cascades, 10);
  RecordProperty("lists_clean", static_cast<int>(tally.lists_clean));
  RecordProperty("clean", static_cast<int>(tally.clean));
  RecordProperty("compared", static_cast<int>(tally.compared));
  RecordProperty("appended", static_cast<int>(tally.appended));
}

}  // namespace
}  // namespace quire::fuzz
