// SPDX-License-Identifier: Apache-2.0
// Mask against the condition of batch.hpp, key by key, on random small masks; what its regions and gaps promise to kernels.
#include "semantics/mask.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace quire::test {
namespace {

using semantics::KeyRange;
using semantics::Mask;

/// A mask by the numbers of batch.hpp. Positions are those of the sequence.
struct Given {
  bool causal = true, beyond = false;
  std::int64_t window = 0, right = -1, chunk = 0, prefix = 0, tree = 0, key_begin = 0, num_keys = 0;  // window 0, right -1: none
  std::vector<std::int64_t> spans;                                                                    // begin, end, begin, ...
};

std::int64_t chunk_of(const Given& g, std::int64_t position) {
  if (g.chunk == 0) return 0;
  std::int64_t chunk = 0;
  while (position < chunk * g.chunk) --chunk;
  while (position >= (chunk + 1) * g.chunk) ++chunk;
  return chunk;
}

/// Whether the row at position q sees key k of a request, but for its tree.
bool sees(const Given& g, std::int64_t q, std::int64_t k) {
  bool together = false;
  for (std::size_t i = 0; i + 1 < g.spans.size(); i += 2)
    together = together || (g.spans[i] <= q && q < g.spans[i + 1] && g.spans[i] <= k && k < g.spans[i + 1]);
  const bool later_hidden = g.causal ? k > q : g.right >= 0 && k > q + g.right;
  if (later_hidden && !together) return false;
  if (k < g.prefix || (together && g.beyond)) return true;
  return (g.window == 0 || q - k < g.window) && chunk_of(g, q) == chunk_of(g, k);
}

Mask mask_of(const Given& g) {
  Mask mask;
  mask.reach = semantics::reach_of(g.causal, g.window, g.right);
  mask.num_keys = g.num_keys;
  mask.key_begin = g.key_begin;
  mask.set_chunk(g.chunk);
  if (!g.spans.empty()) mask.spans = {g.spans.data(), static_cast<std::int64_t>(g.spans.size() / 2)};
  mask.spans_beyond_window = g.beyond;
  mask.set_regions(g.prefix, g.tree);
  return mask;
}

Given drawn(std::mt19937_64& random) {
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); };
  Given g;
  g.causal = below(2) == 0;
  g.window = below(2) * below(7);
  g.right = g.causal ? -1 : below(6) - 1;
  g.chunk = below(2) * below(9);
  g.prefix = below(2) * below(14);
  g.num_keys = below(20);
  g.key_begin = below(2) * below(12);
  g.tree = below(3) == 0 ? below(g.num_keys + 1) : 0;
  g.beyond = below(2) == 0;
  for (std::int64_t at = below(6), left = below(4); left > 0; --left) {
    const std::int64_t end = at + 1 + below(6);
    g.spans.insert(g.spans.end(), {at, end});
    at = end + below(3);
  }
  if (below(2) == 0) g.spans.insert(g.spans.end(), {0, 0, 3, 9});  // spans behind an empty one do not count
  return g;
}

/// `g` without the spans that follow an empty span.
Given trimmed(Given g) {
  for (std::size_t i = 0; i + 1 < g.spans.size(); i += 2)
    if (g.spans[i] == g.spans[i + 1]) return g.spans.resize(i), g;
  return g;
}

/// Keys that kernels fold in for a row: range by range of what rows [first, last] see.
std::set<std::int64_t> keys_of(const Mask& mask, std::int64_t q, std::int64_t first, std::int64_t last) {
  const semantics::SeenKeys all = mask.seen_by(first, last);
  std::set<std::int64_t> keys;
  for (std::int64_t at = all.next(0); at < mask.num_keys;) {
    const std::int64_t stop = all.range_end(at);
    const KeyRange seen = mask.seen(q, at, stop);
    for (std::int64_t k = seen.begin; k < seen.end; ++k) keys.insert(k);
    at = all.next(stop);
  }
  return keys;
}

TEST(Mask, EqualsTheDefinitionKeyByKey) {
  std::mt19937_64 random(1);
  int seen = 0, hidden = 0;
  for (int i = 0; i < 20000; ++i) {
    const Given drawn_mask = drawn(random), g = trimmed(drawn_mask);
    const Mask mask = mask_of(drawn_mask);
    const auto first = static_cast<std::int64_t>(random() % 30) - 6, last = first + static_cast<std::int64_t>(random() % 12);
    for (std::int64_t q = first; q <= last; ++q) {
      const std::set<std::int64_t> keys = keys_of(mask, q, first, last);
      for (std::int64_t k = 0; k < g.num_keys; ++k) {
        const bool expected = k >= g.num_keys - g.tree || sees(g, q + g.key_begin, k + g.key_begin);
        ASSERT_EQ(keys.count(k) == 1, expected)
            << "mask " << i << " causal " << g.causal << " window " << g.window << " right " << g.right << " chunk " << g.chunk
            << " prefix " << g.prefix << " tree " << g.tree << " key_begin " << g.key_begin << " beyond " << g.beyond << " row "
            << q << " of " << first << " to " << last << " key " << k << " of " << g.num_keys;
        (expected ? seen : hidden) += 1;
      }
      ASSERT_EQ(mask.count(q), static_cast<std::int64_t>(keys_of(mask, q, q, q).size()));
    }
  }
  EXPECT_GT(seen, 100000);
  EXPECT_GT(hidden, 100000);
}

TEST(Mask, NeitherEndOfARegionDecreasesFromRowToRow) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 5000; ++i) {
    const Given g = drawn(random);
    const Mask mask = mask_of(g);
    for (std::int64_t q = -9; q < 30; ++q) {
      ASSERT_LE(mask.of_row(q).begin, mask.of_row(q + 1).begin) << "mask " << i << " row " << q;
      ASSERT_LE(mask.of_row(q).end, mask.of_row(q + 1).end) << "mask " << i << " row " << q;
      ASSERT_LE(mask.order_end(q), mask.order_end(q + 1)) << "mask " << i << " row " << q;
    }
  }
}

TEST(Mask, RowsSeeTheKeysOfTheirRangesAndNoOther) {
  std::mt19937_64 random(3);
  int gaps = 0, keys = 0;  ///< seen, and not seen between them
  for (int i = 0; i < 5000; ++i) {
    const Given g = trimmed(drawn(random));
    const Mask mask = mask_of(g);
    const auto first = static_cast<std::int64_t>(random() % 30) - 6, last = first + static_cast<std::int64_t>(random() % 12);
    const semantics::SeenKeys seen = mask.seen_by(first, last);
    std::vector<bool> by_some(static_cast<std::size_t>(g.num_keys)), in_range = by_some;
    for (std::int64_t k = 0; k < g.num_keys; ++k)
      for (std::int64_t q = first; q <= last; ++q)
        if (k >= g.num_keys - g.tree || sees(g, q + g.key_begin, k + g.key_begin)) by_some[static_cast<std::size_t>(k)] = true;
    for (const KeyRange& range : {seen.prefix, seen.middle, seen.tree})
      for (std::int64_t k = range.begin; k < range.end; ++k, ++keys) in_range[static_cast<std::size_t>(k)] = true;
    ASSERT_EQ(by_some, in_range) << "mask " << i;
    for (std::int64_t k = seen.hull().begin; k < seen.hull().end; ++k) gaps += by_some[static_cast<std::size_t>(k)] ? 0 : 1;
  }
  EXPECT_GT(gaps, 1000);
  EXPECT_GT(keys, 1000);
}

TEST(Mask, HugeNumbersDoNotOverflow) {
  constexpr std::int64_t kMost = 0x7FFFFFFF, kHuge = std::int64_t{1} << 62;
  Mask mask;
  mask.reach = semantics::reach_of(false, kHuge, kHuge);
  mask.num_keys = kMost;
  mask.set_chunk(kHuge);
  mask.set_regions(kHuge, 0);
  EXPECT_EQ(mask.prefix_end, kMost);
  EXPECT_EQ(mask.of_row(0).end, kMost);
  EXPECT_EQ(mask.of_rows(-kMost, kMost).end, kMost);
  EXPECT_EQ(mask.chunk, kMost);
  EXPECT_EQ(mask.of_row(-5).end, 0);  // a row before position 0 is of another chunk
}

TEST(TreeBits, CountFromTheLowestOfEachByte) {
  const std::uint8_t bytes[] = {0x81, 0xFF, 0x02, 0xFF};
  const semantics::TreeBits bits{bytes, 2};
  for (std::int64_t b = 0; b < 16; ++b) EXPECT_EQ(bits.sees(b), b == 0 || b == 7 || b == 9) << b;
}

}  // namespace
}  // namespace quire::test
