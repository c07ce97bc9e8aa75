// SPDX-License-Identifier: Apache-2.0
// The block-wise scans say what going one by one would, at every position, type and stride.
#include <gmock/gmock.h>

#include <limits>
#include <vector>

#include "contract/index_scan.h"

namespace quire::contract {
namespace {

using semantics::IndexView;

/// `size` entries of which one is `odd`; `stride` elements apart.
template <typename T>
struct Entries {
  std::vector<T> storage;
  IndexView view;

  Entries(std::int64_t size, std::int64_t stride, T fill)
      : storage(static_cast<std::size_t>(size * stride), T{-7}),  // elements between the entries must not matter
        view{storage.data(), sizeof(T) == 8 ? DType::i64 : DType::i32, stride} {
    for (std::int64_t i = 0; i < size; ++i) at(i) = fill;
  }
  T& at(std::int64_t i) { return storage[static_cast<std::size_t>(i * view.stride)]; }
};

template <typename T>
class IndexScan : public testing::Test {};
using IndexTypes = testing::Types<std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(IndexScan, IndexTypes);

constexpr std::int64_t kSize = 3 * kScanBlock + 5;

TYPED_TEST(IndexScan, OneEntryOutsideIsSeenWhereverItIs) {
  using Limits = std::numeric_limits<TypeParam>;
  const std::int64_t limit = 100;
  for (const std::int64_t stride : {1, 2}) {
    for (const TypeParam odd : {TypeParam{-1}, TypeParam{100}, Limits::max(), Limits::min()}) {
      Entries<TypeParam> entries(kSize, stride, 99);
      entries.at(3) = 0;
      ASSERT_TRUE(all_within(entries.view, 0, kSize, limit));
      for (std::int64_t i = 0; i < kSize; ++i) {
        const TypeParam before = entries.at(i);
        entries.at(i) = odd;
        EXPECT_FALSE(all_within(entries.view, 0, kSize, limit)) << odd << " at " << i;
        EXPECT_TRUE(all_within(entries.view, i + 1, kSize, limit)) << "what lies before the range is not looked at";
        EXPECT_TRUE(all_within(entries.view, 0, i, limit)) << "nor what lies behind it";
        entries.at(i) = before;
      }
    }
  }
}

TYPED_TEST(IndexScan, AnEmptyRangeIsWithin) {
  Entries<TypeParam> entries(1, 1, -1);
  EXPECT_TRUE(all_within(entries.view, 0, 0, 1));
  EXPECT_TRUE(all_within(entries.view, 5, 2, 1));
}

TEST(IndexScanLimits, PastTheTypeOfTheEntries) {
  Entries<std::int32_t> entries(kSize, 1, std::numeric_limits<std::int32_t>::max());
  EXPECT_TRUE(all_within(entries.view, 0, kSize, std::int64_t{1} << 40));
  EXPECT_FALSE(all_within(entries.view, 0, kSize, std::numeric_limits<std::int32_t>::max()));
}

TYPED_TEST(IndexScan, VisitsEachHeldEntryOnceAndInOrder) {
  for (const std::int64_t stride : {1, 3}) {
    Entries<TypeParam> entries(kSize, stride, 5);
    ValueFilter filter;
    filter.add(6);
    std::vector<std::int64_t> planted, visited;
    for (std::int64_t i : {std::int64_t{0}, std::int64_t{15}, std::int64_t{16}, std::int64_t{17}, kSize - 1}) {
      entries.at(i) = 6;
      planted.push_back(i);
    }
    for_each_held(entries.view, 0, kSize, filter, [&](std::int64_t i, std::int64_t value) {
      EXPECT_EQ(value, 6);
      visited.push_back(i);
    });
    EXPECT_EQ(visited, planted);
  }
}

TEST(ValueFilter, NeverDeniesWhatWasAdded) {
  ValueFilter filter;
  EXPECT_FALSE(filter.may_hold(17));
  for (const std::int64_t value : {std::int64_t{17}, std::int64_t{-1}, std::int64_t{1} << 50, std::int64_t{8192 * 3 + 1}}) {
    filter.add(value);
    EXPECT_TRUE(filter.may_hold(value)) << value;
  }
}

}  // namespace
}  // namespace quire::contract
