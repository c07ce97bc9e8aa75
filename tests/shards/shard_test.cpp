// SPDX-License-Identifier: Apache-2.0
// ContextShard and HeadShard against positions that are dealt out one by one, exhaustively for small worlds.
#include <gtest/gtest.h>

#include <vector>

#include "quire/shards.hpp"
#include "shards/ranks.h"

namespace quire::test {
namespace {

/// The positions of each rank, dealt like cards: `run` to a rank, then `run` to the next.
std::vector<std::vector<std::int64_t>> dealt(std::int32_t world, std::int64_t run, bool contiguous, std::int64_t length) {
  std::vector<std::vector<std::int64_t>> hands(static_cast<std::size_t>(world));
  std::size_t rank = 0;
  std::int64_t in_hand = 0;
  for (std::int64_t p = 0; p < length; ++p) {
    const bool last = rank + 1 == hands.size();
    if (in_hand == run && !(contiguous && last)) {
      rank = last ? 0 : rank + 1;
      in_hand = 0;
    }
    hands[rank].push_back(p);
    ++in_hand;
  }
  return hands;
}

template <class Visit>
void for_each_shard(Visit&& visit) {
  for (std::int32_t world = 1; world <= 5; ++world)
    for (const std::int64_t run : {1, 2, 3, 5, 8, 16, 48})
      for (const bool contiguous : {false, true}) visit(world, run, contiguous);
}

TEST(Shard, DealsPositionsLikeCards) {
  for_each_shard([](std::int32_t world, std::int64_t run, bool contiguous) {
    for (std::int64_t length = 0; length <= 200; ++length) {
      const auto hands = dealt(world, run, contiguous, length);
      for (std::int32_t rank = 0; rank < world; ++rank) {
        const ContextShard shard = shard_of(rank, world, run, contiguous);
        const auto& hand = hands[static_cast<std::size_t>(rank)];
        ASSERT_EQ(shard.local_length(length), static_cast<std::int64_t>(hand.size())) << world << " " << run << " " << length;
        if (length < 200) continue;  // the positions of shorter lengths are among these
        for (std::size_t j = 0; j < hand.size(); ++j) {
          ASSERT_EQ(shard.global_position(static_cast<std::int64_t>(j)), hand[j]);
          ASSERT_EQ(shard.local_index(hand[j]), static_cast<std::int64_t>(j));
          ASSERT_EQ(shard.owner(hand[j]), rank);
          ASSERT_TRUE(shard.holds(hand[j]));
        }
      }
    }
  });
}

/// Runs and worlds of the largest size: products of both stay within 64 bits, and a request lies on the first rank alone.
TEST(Shard, LargestRunsAndWorldsHoldARequestOnOneRank) {
  constexpr std::int64_t kMost = 2147483647;
  for (const std::int32_t world : {1, 2, 1 << 20, INT32_MAX})
    for (const bool contiguous : {false, true})
      for (const std::int32_t rank : {0, world - 1}) {
        const ContextShard shard = shard_of(rank, world, kMost, contiguous);
        ASSERT_TRUE(check_shard(shard).ok());
        EXPECT_EQ(shard.local_length(kMost), rank == 0 ? kMost : 0);
        EXPECT_EQ(shard.owner(kMost - 1), 0);
        EXPECT_EQ(shard.local_index(kMost - 1), kMost - 1);
        EXPECT_EQ(shard.global_position(kMost - 1), rank * kMost + kMost - 1);
        const std::vector<std::int64_t> starts = {0, 1}, lengths = {7};
        const auto local = local_lengths(shard, starts, lengths, std::int64_t{1} << 40);
        ASSERT_TRUE(local.ok()) << local.status().message();
        EXPECT_EQ(local->seq_lens, std::vector<std::int64_t>{rank == 0 ? 7 : 0});
        EXPECT_LE(local->q_begin.at(0), kMost);
        if (contiguous) {
          EXPECT_LE(local->key_begin.at(0), kMost);
        }
      }
  const ContextShard beyond{.rank = 3, .world = 4, .interleave = std::int64_t{1} << 62};
  const std::vector<std::int64_t> starts = {0, 1}, lengths = {7};
  EXPECT_EQ(local_lengths(beyond, starts, lengths, std::nullopt).status().rule(), "Q-D02");
}

TEST(Shard, EverySlotIsOnExactlyOneRankAndInItsPage) {
  constexpr std::int64_t kLength = 117, kRequests = 2;
  for_each_shard([](std::int32_t world, std::int64_t run, bool contiguous) {
    for (const std::int64_t page_size : {1, 3, 8, 16}) {
      std::vector<std::int64_t> positions, requests;
      for (std::int64_t t = 0; t < kRequests * kLength; ++t) {
        positions.push_back(t % kLength);
        requests.push_back(t / kLength);
      }
      std::vector<int> owners(positions.size(), 0);
      for (std::int32_t rank = 0; rank < world; ++rank) {
        const ContextShard shard = shard_of(rank, world, run, contiguous);
        const std::int64_t pages = (shard.local_length(kLength) + page_size - 1) / page_size;
        std::vector<std::int64_t> table;  // request r's local page j is page 1000 * r + 7 * j
        for (std::int64_t r = 0; r < kRequests; ++r)
          for (std::int64_t j = 0; j < pages; ++j) table.push_back(1000 * r + 7 * j);
        const auto slots = local_slots(shard, positions, requests, table, pages, page_size);
        ASSERT_TRUE(slots.ok()) << slots.status().message();
        EXPECT_TRUE(check_shard_slots(shard, slots.value(), positions).ok());
        std::vector<std::int64_t> next(kRequests, 0);  // a rank's tokens fill its pages in order
        for (std::size_t t = 0; t < positions.size(); ++t) {
          const std::int64_t slot = slots.value()[t];
          if (slot < 0) continue;
          ++owners[t];
          const std::int64_t local = next[static_cast<std::size_t>(requests[t])]++;
          ASSERT_EQ(slot, (1000 * requests[t] + 7 * (local / page_size)) * page_size + local % page_size);
        }
      }
      for (const int count : owners) ASSERT_EQ(count, 1);
    }
  });
}

TEST(Shard, LocalTablesHoldEveryPageOnce) {
  for (std::int32_t world = 1; world <= 5; ++world)
    for (const std::int64_t page_size : {1, 2, 16})
      for (const std::int64_t pages_per_run : {1, 2, 3})
        for (const bool contiguous : {false, true})
          for (std::int64_t length = 0; length <= 200; ++length) {
            const std::int64_t pages = (length + page_size - 1) / page_size;
            std::vector<std::int64_t> table;
            for (std::int64_t j = 0; j < pages; ++j) table.push_back(900 - j);
            std::vector<std::int64_t> seen;
            for (std::int32_t rank = 0; rank < world; ++rank) {
              const ContextShard shard = shard_of(rank, world, pages_per_run * page_size, contiguous);
              const std::vector<std::int64_t> lengths = {length};
              const auto local = local_table(shard, table, pages, lengths, page_size);
              ASSERT_TRUE(local.ok()) << local.status().message();
              ASSERT_EQ(local->pages_per_request, (shard.local_length(length) + page_size - 1) / page_size);
              for (std::int64_t j = 0; j < local->pages_per_request; ++j) {
                const std::int64_t page = local->pages[static_cast<std::size_t>(j)];
                ASSERT_TRUE(shard.holds((900 - page) * page_size));
                ASSERT_EQ(shard.local_index((900 - page) * page_size), j * page_size);
                seen.push_back(page);
              }
            }
            std::sort(seen.rbegin(), seen.rend());
            ASSERT_EQ(seen, table) << world << " " << page_size << " " << length;
          }
}

TEST(Shard, BadTablesAreRefusedByName) {
  const ContextShard shard{.rank = 1, .world = 2, .interleave = 4};
  const std::vector<std::int64_t> positions = {4, 12}, requests = {0, 0}, table = {5};
  EXPECT_EQ(local_slots(shard, positions, requests, table, 1, 4).status().message(),
            "local_slots: position 12 of request 0 is in local page 1, but the table has 1 pages per request");
  EXPECT_EQ(local_table(shard, table, 1, positions, 8).status().rule(), "Q-D04");
  EXPECT_EQ(local_slots({.rank = 2, .world = 2}, positions, requests, table, 1, 4).status().rule(), "Q-D01");
}

TEST(Shard, HeadsAreSharedOutWithTheirKvHeads) {
  for (const std::int64_t kv_heads : {1, 2, 3, 4, 8})
    for (const std::int64_t group : {1, 2, 4, 6, 12})
      for (std::int32_t world = 1; world <= 8; ++world) {
        const std::int64_t q_heads = kv_heads * group;
        const bool fits = (kv_heads % world == 0 || world % kv_heads == 0) && q_heads % world == 0;
        ASSERT_EQ(check_shard(HeadShard{0, world, q_heads, kv_heads}).ok(), fits);
        if (!fits) continue;
        std::vector<int> computed(static_cast<std::size_t>(q_heads), 0);
        for (std::int32_t rank = 0; rank < world; ++rank) {
          const HeadShard shard{rank, world, q_heads, kv_heads};
          const std::int64_t local_group = shard.q_heads() / shard.kv_heads();
          for (std::int64_t h = 0; h < shard.q_heads(); ++h) {
            const std::int64_t head = shard.first_q_head() + h;
            ++computed[static_cast<std::size_t>(head)];
            ASSERT_EQ(shard.first_kv_head() + h / local_group, head / group) << kv_heads << " " << group << " " << world;
          }
        }
        for (const int count : computed) ASSERT_EQ(count, 1);
      }
}

}  // namespace
}  // namespace quire::test
