// SPDX-License-Identifier: Apache-2.0
#include "semantics/ceil_div.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace quire::semantics {
namespace {

TEST(CeilDiv, IsTheSmallestCountOfPiecesThatHoldsAll) {
  for (std::int64_t b = 1; b <= 9; ++b)
    for (std::int64_t a = -40; a <= 40; ++a) {
      const std::int64_t q = ceil_div(a, b);
      ASSERT_TRUE(q * b >= a && (q - 1) * b < a) << a << " / " << b << ": " << q;
      ASSERT_EQ(round_up(a, b), q * b);
    }
}

TEST(CeilDiv, DoesNotOverflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  static_assert(ceil_div(kMost, 2) == kMost / 2 + 1);
  static_assert(ceil_div(kMost, kMost) == 1);
  static_assert(ceil_div(std::numeric_limits<std::uint64_t>::max(), 3) == std::numeric_limits<std::uint64_t>::max() / 3);
}

}  // namespace
}  // namespace quire::semantics
