// SPDX-License-Identifier: Apache-2.0
// PagePool: each documented call on small pools, worked by hand.
#include "quire/page_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

Tokens range(std::int32_t first, std::int32_t count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

PagePool make_pool(std::int64_t num_pages, std::int64_t page_size, bool sharing = true, std::vector<SlotLedger*> ledgers = {}) {
  auto pool = PagePool::create({num_pages, page_size, sharing, std::move(ledgers)});
  EXPECT_TRUE(pool.ok()) << pool.status().message();
  return std::move(pool).value();
}

void compute_all(PagePool& pool, std::int64_t request, std::int64_t num_tokens) {
  ASSERT_TRUE(pool.reserve(request, num_tokens).ok());
  ASSERT_TRUE(pool.commit(request, num_tokens).ok());
}

TEST(PagePool, CreateRefusesWhatItCannotServe) {
  EXPECT_THAT(PagePool::create({0, 16, true, {}}).status().message(), HasSubstr("num_pages: 0 outside [1,"));
  EXPECT_THAT(PagePool::create({-5, 16, true, {}}).status().message(), HasSubstr("num_pages: -5"));
  EXPECT_THAT(PagePool::create({std::int64_t{1} << 31, 16, true, {}}).status().message(), HasSubstr("num_pages: 2147483648"));
  EXPECT_THAT(PagePool::create({4, 0, true, {}}).status().message(), HasSubstr("page_size: 0 outside [1,"));
  EXPECT_THAT(PagePool::create({4, std::numeric_limits<std::int64_t>::max(), true, {}}).status().message(),
              HasSubstr("page_size"));
}

TEST(PagePool, SlotsFollowTheBlockTable) {
  PagePool pool = make_pool(8, 4);
  ASSERT_EQ(pool.add(3, range(0, 10)).value(), 0);
  EXPECT_THAT(pool.slot(3, 0).status().message(), HasSubstr("request 3: position 0 has no page, expected one in [0, 0)"));
  ASSERT_TRUE(pool.reserve(3, 10).ok());
  const auto table = pool.block_table(3).value();
  ASSERT_EQ(table.size(), 3u);
  for (std::int64_t p = 0; p < 12; ++p) EXPECT_EQ(pool.slot(3, p).value(), table[static_cast<std::size_t>(p / 4)] * 4 + p % 4);
  EXPECT_EQ(pool.slot(3, 12).status().code(), Code::invalid_argument);
  EXPECT_THAT(pool.slot(3, 12).status().message(), HasSubstr("position 12 has no page, expected one in [0, 12) (3 pages of 4"));
  EXPECT_THAT(pool.slot(3, -1).status().message(), HasSubstr("position -1 has no page"));
  EXPECT_THAT(pool.slot(4, 0).status().message(), HasSubstr("PagePool::slot request 4: unknown"));
  EXPECT_THAT(pool.block_table(4).status().message(), HasSubstr("PagePool::block_table request 4: unknown"));
}

TEST(PagePool, FullPagesOfACommonPrefixAreShared) {
  PagePool pool = make_pool(16, 4);
  Tokens first = range(0, 14), second = range(0, 14);
  second[9] = 99;  // third page differs
  ASSERT_EQ(pool.add(1, first).value(), 0);
  compute_all(pool, 1, 14);
  ASSERT_EQ(pool.add(2, second).value(), 8);
  ASSERT_TRUE(pool.reserve(2, 14).ok());
  const auto a = pool.block_table(1).value(), b = pool.block_table(2).value();
  EXPECT_EQ(a[0], b[0]);
  EXPECT_EQ(a[1], b[1]);
  EXPECT_NE(a[2], b[2]);
  EXPECT_EQ(pool.stats().pages_in_use, 6);
  EXPECT_EQ(pool.stats().pages_shared, 2);
  EXPECT_EQ(pool.stats().prefix_hit_tokens, 8);
  ASSERT_TRUE(pool.release(1).ok());
  EXPECT_EQ(pool.stats().pages_in_use, 4);
  EXPECT_EQ(pool.stats().pages_shared, 0);
}

TEST(PagePool, OneRowAlwaysRemainsToCompute) {
  PagePool pool = make_pool(16, 4);
  ASSERT_TRUE(pool.add(1, range(0, 8)).ok());
  compute_all(pool, 1, 8);
  EXPECT_EQ(pool.add(2, range(0, 8)).value(), 4) << "all 8 tokens are cached, but the last one's logits are still needed";
  EXPECT_EQ(pool.add(3, range(0, 9)).value(), 8);
  EXPECT_EQ(pool.add(4, range(0, 1)).value(), 0);
}

TEST(PagePool, UncommittedAndPartialPagesAreNotShared) {
  PagePool pool = make_pool(16, 4);
  ASSERT_TRUE(pool.add(1, range(0, 12)).ok());
  ASSERT_TRUE(pool.reserve(1, 12).ok());
  EXPECT_EQ(pool.add(2, range(0, 12)).value(), 0) << "reserved, but nobody has written it";
  ASSERT_TRUE(pool.commit(1, 7).ok());
  EXPECT_EQ(pool.add(3, range(0, 12)).value(), 4) << "page 1 holds 3 of 4 tokens";
}

TEST(PagePool, GeneratedTokensAreSharedToo) {
  PagePool pool = make_pool(16, 4);
  ASSERT_TRUE(pool.add(1, range(0, 3)).ok());
  for (std::int32_t t = 3; t < 9; ++t) ASSERT_TRUE(pool.push_token(1, t).ok());
  compute_all(pool, 1, 9);
  EXPECT_EQ(pool.add(2, range(0, 20)).value(), 8);
}

TEST(PagePool, SharingCanBeSwitchedOff) {
  PagePool pool = make_pool(16, 4, /*sharing=*/false);
  ASSERT_TRUE(pool.add(1, range(0, 12)).ok());
  compute_all(pool, 1, 12);
  EXPECT_EQ(pool.add(2, range(0, 12)).value(), 0);
  EXPECT_EQ(pool.stats().pages_shared, 0);
}

TEST(PagePool, ReleasedPagesStayFindableUntilHandedOut) {
  PagePool pool = make_pool(4, 4);
  ASSERT_TRUE(pool.add(1, range(0, 9)).ok());
  compute_all(pool, 1, 9);
  const Tokens held(pool.block_table(1).value().begin(), pool.block_table(1).value().end());
  ASSERT_TRUE(pool.release(1).ok());
  EXPECT_EQ(pool.stats().pages_in_use, 0);
  ASSERT_EQ(pool.add(2, range(0, 9)).value(), 8);
  EXPECT_THAT(pool.block_table(2).value(), ElementsAre(held[0], held[1]));
  ASSERT_TRUE(pool.release(2).ok());
  EXPECT_EQ(pool.stats().evictions, 0);

  ASSERT_TRUE(pool.add(3, range(100, 12)).ok());
  ASSERT_TRUE(pool.reserve(3, 12).ok());
  EXPECT_EQ(pool.stats().evictions, 1) << "two pages were plain free, the third had to come from the cached ones";
  ASSERT_TRUE(pool.release(3).ok());
  EXPECT_EQ(pool.add(4, range(0, 9)).value(), 4) << "the end of the chain goes before its beginning";
}

TEST(PagePool, LeastRecentlyUsedContentsGoFirst) {
  PagePool pool = make_pool(3, 2);
  for (std::int32_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(pool.add(r, range(10 * r, 3)).ok());
    compute_all(pool, r, 2);
    ASSERT_TRUE(pool.release(r).ok());
  }
  ASSERT_EQ(pool.add(3, range(0, 3)).value(), 2);  // request 0's page becomes the most recent
  ASSERT_TRUE(pool.release(3).ok());
  ASSERT_TRUE(pool.add(4, range(90, 1)).ok());
  ASSERT_TRUE(pool.reserve(4, 1).ok());
  EXPECT_EQ(pool.add(5, range(10, 3)).value(), 0) << "request 1's page was the oldest";
  EXPECT_EQ(pool.add(6, range(20, 3)).value(), 2);
  EXPECT_EQ(pool.add(7, range(0, 3)).value(), 2);
}

TEST(PagePool, OutOfPagesChangesNothing) {
  PagePool pool = make_pool(4, 4);
  ASSERT_TRUE(pool.add(1, range(0, 8)).ok());
  compute_all(pool, 1, 8);
  ASSERT_TRUE(pool.add(2, range(50, 20)).ok());
  const auto before = pool.stats();
  const Status status = pool.reserve(2, 20);
  EXPECT_EQ(status.code(), Code::out_of_pages);
  EXPECT_THAT(status.message(), HasSubstr("request 2: 5 more pages needed for 20 tokens, 2 of 4 free"));
  EXPECT_TRUE(pool.block_table(2).value().empty());
  EXPECT_EQ(pool.stats().pages_in_use, before.pages_in_use);
  EXPECT_EQ(pool.stats().evictions, before.evictions);
  EXPECT_TRUE(pool.reserve(2, 8).ok());
  EXPECT_EQ(pool.reserve(2, std::numeric_limits<std::int64_t>::max()).code(), Code::out_of_pages);
}

TEST(PagePool, PreemptAndResumeReattachesWhatIsStillThere) {
  PagePool pool = make_pool(6, 4);
  ASSERT_TRUE(pool.add(1, range(0, 8)).ok());
  compute_all(pool, 1, 8);
  ASSERT_TRUE(pool.add(2, range(50, 8)).ok());
  compute_all(pool, 2, 8);
  ASSERT_TRUE(pool.push_token(2, 7).ok());
  ASSERT_EQ(pool.victim(), 2);
  ASSERT_TRUE(pool.preempt(2).ok());
  EXPECT_TRUE(pool.block_table(2).value().empty());
  EXPECT_FALSE(pool.slot(2, 0).ok());
  EXPECT_EQ(pool.victim(), 1) << "request 2 holds nothing any more";
  EXPECT_THAT(pool.reserve(2, 9).message(), HasSubstr("preempted, expected resume()"));
  EXPECT_THAT(pool.preempt(2).message(), HasSubstr("already preempted"));
  ASSERT_TRUE(pool.reserve(1, 20).ok()) << "three free pages, one of request 2's evicted";
  EXPECT_EQ(pool.resume(2).value(), 4);
  EXPECT_EQ(pool.stats().preemptions, 1);
  EXPECT_FALSE(pool.resume(2).ok());
  EXPECT_EQ(pool.reserve(2, 9).code(), Code::out_of_pages);
}

TEST(PagePool, EqualPagesComputedSideBySideDoNotMixOwners) {
  PagePool pool = make_pool(8, 2);
  ASSERT_TRUE(pool.add(1, range(0, 5)).ok());
  ASSERT_TRUE(pool.add(2, range(0, 5)).ok());
  compute_all(pool, 1, 4);
  compute_all(pool, 2, 4);
  EXPECT_NE(pool.block_table(1).value()[0], pool.block_table(2).value()[0]);
  ASSERT_EQ(pool.add(3, range(0, 5)).value(), 4);
  EXPECT_EQ(pool.block_table(3).value()[0], pool.block_table(1).value()[0]) << "the first to commit is the one that is found";
  ASSERT_TRUE(pool.release(1).ok());
  ASSERT_TRUE(pool.release(2).ok());
  EXPECT_EQ(pool.stats().pages_in_use, 2);
}

TEST(PagePool, VictimIsTheLastAdded) {
  PagePool pool = make_pool(8, 2);
  EXPECT_EQ(pool.victim(), std::nullopt);
  ASSERT_TRUE(pool.add(9, range(0, 2)).ok());
  ASSERT_TRUE(pool.add(4, range(10, 2)).ok());
  ASSERT_TRUE(pool.add(6, range(20, 2)).ok());
  EXPECT_EQ(pool.victim(), std::nullopt) << "nobody holds a page";
  ASSERT_TRUE(pool.reserve(9, 2).ok());
  ASSERT_TRUE(pool.reserve(4, 2).ok());
  EXPECT_EQ(pool.victim(), 4);
}

TEST(PagePool, EveryLedgerHearsOfSharingAndReuse) {
  SlotLedger layer0(4, 2), layer1(4, 2);
  PagePool pool = make_pool(4, 2, /*sharing=*/true, {&layer0, &layer1});
  const auto write = [&](std::int64_t request, std::int64_t position) {
    for (SlotLedger* ledger : {&layer0, &layer1}) ledger->record(pool.slot(request, position).value(), {request, position});
  };
  ASSERT_TRUE(pool.add(1, range(0, 5)).ok());
  ASSERT_TRUE(pool.reserve(1, 5).ok());
  for (std::int64_t p = 0; p < 5; ++p) write(1, p);
  ASSERT_TRUE(pool.commit(1, 5).ok());
  const std::int32_t full = pool.block_table(1).value()[1], partial = pool.block_table(1).value()[2];
  ASSERT_EQ(pool.add(2, range(0, 5)).value(), 4);
  ASSERT_TRUE(pool.release(1).ok());
  for (const SlotLedger* ledger : {&layer0, &layer1}) {
    EXPECT_TRUE(ledger->shared_with(full, 2));
    EXPECT_FALSE(ledger->entry(full * 2).recycled) << "request 2 still reads it";
    EXPECT_TRUE(ledger->entry(partial * 2).recycled) << "nobody can read it any more";
  }
  ASSERT_TRUE(pool.release(2).ok());
  EXPECT_FALSE(layer0.entry(full * 2).recycled) << "still findable";
  ASSERT_TRUE(pool.add(3, range(50, 8)).ok());
  ASSERT_TRUE(pool.reserve(3, 8).ok());
  for (const SlotLedger* ledger : {&layer0, &layer1}) {
    EXPECT_TRUE(ledger->entry(full * 2).recycled) << "handed out anew";
    EXPECT_FALSE(ledger->shared_with(full, 2));
  }
}

TEST(PagePool, ALedgerOfAnotherShapeIsRefused) {
  SlotLedger fits(4, 2), other(4, 3);
  EXPECT_THAT(PagePool::create({4, 2, true, {&fits, &other}}).status().message(),
              HasSubstr("ledgers[1]: 4 pages of 3 tokens, expected 4 pages of 2 tokens"));
  EXPECT_THAT(PagePool::create({4, 2, true, {nullptr}}).status().message(), HasSubstr("ledgers[0]: null"));
}

TEST(PagePool, WrongUseIsNamed) {
  PagePool pool = make_pool(8, 4);
  EXPECT_THAT(pool.add(-1, range(0, 2)).status().message(), HasSubstr("request -1: negative"));
  EXPECT_THAT(pool.add(1, Tokens{}).status().message(), HasSubstr("0 tokens"));
  ASSERT_TRUE(pool.add(1, range(0, 6)).ok());
  EXPECT_THAT(pool.add(1, range(0, 2)).status().message(), HasSubstr("already added"));
  EXPECT_THAT(pool.reserve(7, 1).message(), HasSubstr("request 7: unknown"));
  EXPECT_THAT(pool.reserve(1, -1).message(), HasSubstr("num_tokens: -1 negative"));
  EXPECT_THAT(pool.push_token(7, 1).message(), HasSubstr("request 7: unknown"));
  EXPECT_THAT(pool.release(7).message(), HasSubstr("request 7: unknown"));
  EXPECT_THAT(pool.preempt(7).message(), HasSubstr("request 7: unknown"));
  EXPECT_THAT(pool.resume(7).status().message(), HasSubstr("request 7: unknown"));
  EXPECT_EQ(pool.commit(1, 1).code(), Code::invalid_argument) << "no pages reserved";
  ASSERT_TRUE(pool.reserve(1, 8).ok());
  EXPECT_THAT(pool.commit(1, 7).message(),
              HasSubstr("7 tokens, expected at least the 0 committed, at most the 6 known, in 2 pages"));
  ASSERT_TRUE(pool.commit(1, 5).ok());
  EXPECT_EQ(pool.commit(1, 4).code(), Code::invalid_argument);
  EXPECT_EQ(pool.commit(1, std::numeric_limits<std::int64_t>::min()).code(), Code::invalid_argument);
  EXPECT_TRUE(pool.commit(1, 5).ok());
}

}  // namespace
}  // namespace quire
