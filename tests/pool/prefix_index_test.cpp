// SPDX-License-Identifier: Apache-2.0
// Prefix index: a hit means the same tokens after the same prefix, whatever the hashes say.
#include "pool/prefix_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(PrefixIndex, FindsExactlyWhatWasInserted) {
  PrefixIndex index;
  const std::int64_t a = index.insert(PrefixIndex::kRoot, Tokens{1, 2}, 7);
  const std::int64_t b = index.insert(a, Tokens{3, 4}, 9);
  ASSERT_TRUE(index.find(PrefixIndex::kRoot, Tokens{1, 2}));
  EXPECT_EQ(index.find(PrefixIndex::kRoot, Tokens{1, 2})->page, 7);
  EXPECT_EQ(index.find(a, Tokens{3, 4})->page, 9);
  EXPECT_FALSE(index.find(PrefixIndex::kRoot, Tokens{3, 4})) << "the same page after another prefix holds other K and V";
  EXPECT_FALSE(index.find(b, Tokens{3, 4}));
  EXPECT_FALSE(index.find(PrefixIndex::kRoot, Tokens{2, 1}));
}

TEST(PrefixIndex, EqualHashesNeverMatchOnTheirOwn) {
  PrefixIndex index([](std::int64_t, std::span<const std::int32_t>) -> std::uint64_t { return 42; });
  const std::int64_t a = index.insert(PrefixIndex::kRoot, Tokens{1, 2}, 0);
  const std::int64_t b = index.insert(PrefixIndex::kRoot, Tokens{5, 6}, 1);
  index.insert(a, Tokens{3, 4}, 2);
  EXPECT_EQ(index.find(PrefixIndex::kRoot, Tokens{5, 6})->page, 1);
  EXPECT_EQ(index.find(a, Tokens{3, 4})->page, 2);
  EXPECT_FALSE(index.find(b, Tokens{3, 4}));
  EXPECT_FALSE(index.find(PrefixIndex::kRoot, Tokens{9, 9}));
  index.erase(a);
  EXPECT_FALSE(index.find(PrefixIndex::kRoot, Tokens{1, 2}));
  EXPECT_EQ(index.find(PrefixIndex::kRoot, Tokens{5, 6})->node, b) << "erasing one of several equal hashes erased another";
}

TEST(PrefixIndex, NodesAreNeverReusedSoAnErasedParentHidesItsChildren) {
  PrefixIndex index;
  const std::int64_t a = index.insert(PrefixIndex::kRoot, Tokens{1}, 0);
  index.insert(a, Tokens{2}, 1);
  index.erase(a);
  EXPECT_FALSE(index.contains(a));
  const std::int64_t again = index.insert(PrefixIndex::kRoot, Tokens{1}, 2);
  EXPECT_NE(again, a);
  EXPECT_FALSE(index.find(again, Tokens{2}));
  EXPECT_EQ(index.size(), 2u);
}

TEST(PrefixIndex, HashSeparatesOrderParentAndSign) {
  EXPECT_NE(hash_page(0, Tokens{1, 2}), hash_page(0, Tokens{2, 1}));
  EXPECT_NE(hash_page(0, Tokens{1, 2}), hash_page(1, Tokens{1, 2}));
  EXPECT_NE(hash_page(0, Tokens{0}), hash_page(0, Tokens{0, 0}));
  EXPECT_NE(hash_page(0, Tokens{-1}), hash_page(0, Tokens{1}));
}

}  // namespace
}  // namespace quire
