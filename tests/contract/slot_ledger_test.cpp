// SPDX-License-Identifier: Apache-2.0
// The slot ledger by itself: what it remembers, and what append() and a page pool tell it.
#include <gtest/gtest.h>

#include "quire/contract.hpp"

namespace quire {
namespace {

TEST(SlotLedger, RemembersTheLastWrite) {
  SlotLedger ledger(4, 8);
  EXPECT_EQ(ledger.num_pages(), 4);
  EXPECT_EQ(ledger.page_size(), 8);
  EXPECT_EQ(ledger.entry(9).request, -1);
  ledger.record(9, {7, 100});
  ledger.begin_step(3);
  ledger.record(9, {8, 101});
  const SlotLedger::Entry entry = ledger.entry(9);
  EXPECT_EQ(entry.request, 8);
  EXPECT_EQ(entry.position, 101);
  EXPECT_EQ(entry.step, 3);
  EXPECT_FALSE(entry.recycled);
  EXPECT_EQ(ledger.slots_written(), 2);
}

TEST(SlotLedger, RecycledUntilWrittenAgain) {
  SlotLedger ledger(4, 8);
  ledger.record(9, {7, 1});
  ledger.share(1, 5);
  EXPECT_TRUE(ledger.shared_with(1, 5));
  ledger.recycle(1);
  EXPECT_TRUE(ledger.entry(9).recycled);
  EXPECT_FALSE(ledger.shared_with(1, 5));
  EXPECT_EQ(ledger.entry(10).request, -1) << "never written stays never written";
  ledger.record(9, {6, 1});
  EXPECT_FALSE(ledger.entry(9).recycled);
}

TEST(SlotLedger, StepsOnlyGrow) {
  SlotLedger ledger(1, 1);
  ledger.begin_step(5);
  ledger.begin_step(2);
  ledger.record(0, {1, 0});
  EXPECT_EQ(ledger.entry(0).step, 5);
}

TEST(SlotLedger, OutOfRangeIsIgnored) {
  SlotLedger ledger(2, 4);
  for (std::int64_t slot : {std::int64_t{-1}, std::int64_t{8}, INT64_MIN, INT64_MAX}) {
    ledger.record(slot, {1, 1});
    EXPECT_EQ(ledger.entry(slot).request, -1);
  }
  for (std::int64_t page : {std::int64_t{-1}, std::int64_t{2}, INT64_MIN, INT64_MAX}) {
    ledger.share(page, 1);
    ledger.recycle(page);
    EXPECT_FALSE(ledger.shared_with(page, 1));
  }
  EXPECT_EQ(ledger.slots_written(), 0);
}

TEST(SlotLedger, ImpossibleSizesGiveAnEmptyLedger) {
  for (const auto& [pages, size] :
       {std::pair<std::int64_t, std::int64_t>{-1, 16}, {16, 0}, {INT64_MAX, 16}, {INT64_MAX, INT64_MAX}}) {
    const SlotLedger ledger(pages, size);
    EXPECT_EQ(ledger.num_pages(), 0);
    EXPECT_EQ(ledger.entry(0).request, -1);
  }
}

TEST(SlotLedger, Moves) {
  SlotLedger a(2, 4);
  a.record(3, {1, 2});
  SlotLedger b = std::move(a);
  EXPECT_EQ(b.entry(3).position, 2);
  SlotLedger c(1, 1);
  c = std::move(b);
  EXPECT_EQ(c.entry(3).position, 2);
}

}  // namespace
}  // namespace quire
