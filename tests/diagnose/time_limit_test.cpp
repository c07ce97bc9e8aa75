// SPDX-License-Identifier: Apache-2.0
// The clock of a diagnosis: parts of the time end with the whole.
#include "diagnose/time_limit.h"

#include <gtest/gtest.h>

namespace quire::diagnose_detail {
namespace {

TEST(TimeLimit, PartsEndWithTheWhole) {
  const TimeLimit limit(0.05);
  EXPECT_FALSE(limit.part(0.5).is_up());
  while (!limit.is_up()) {
  }
  EXPECT_TRUE(limit.part(0.5).is_up());
  EXPECT_FALSE(limit.part(0.5).run([] { FAIL() << "time is up"; }));
  EXPECT_FALSE(limit.rest().is_up()) << "half of the time is left after localising";
}

TEST(TimeLimit, OfANegativeTimeNeverEnds) {
  const TimeLimit limit(-1);
  for (const TimeLimit& part : {limit, limit.part(0), limit.rest()}) EXPECT_TRUE(part.run([] {}));
}

}  // namespace
}  // namespace quire::diagnose_detail
