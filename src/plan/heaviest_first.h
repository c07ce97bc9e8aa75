// SPDX-License-Identifier: Apache-2.0
// Ordering by falling cost without comparing: costs are bucketed by the top bits of their float form (steps of less than 1 %),
// equal buckets keep their order. Linear time, one allocation; equal inputs give equal orders.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace quire::plan_detail {

/// Index in the low half, a key that falls as the cost grows in the high half.
using CostKey = std::uint64_t;

inline CostKey cost_key(double cost, std::size_t index) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(cost));  // cost >= 0: ordered like an integer
  return (static_cast<CostKey>(0xffff - (bits >> 16)) << 32) | index;
}
inline std::size_t index_of(CostKey key) { return static_cast<std::size_t>(key & 0xffffffff); }

/// Stable; heaviest first. Two passes of a radix sort over the 16 bits of the key, each skipped if it would move nothing.
inline void sort_heaviest_first(std::vector<CostKey>& keys) {
  std::vector<CostKey> other;
  for (const int shift : {32, 40}) {
    const auto digit = [shift](CostKey key) { return static_cast<std::size_t>(key >> shift) & 0xff; };
    std::array<std::uint32_t, 256> start{};
    bool ordered = true;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ++start[digit(keys[i])];
      ordered = ordered && (i == 0 || digit(keys[i - 1]) <= digit(keys[i]));
    }
    if (ordered) continue;
    std::uint32_t sum = 0;
    for (std::uint32_t& s : start) {
      const std::uint32_t count = s;
      s = sum;
      sum += count;
    }
    other.resize(keys.size());
    for (const CostKey key : keys) other[start[digit(key)]++] = key;
    keys.swap(other);
  }
}

}  // namespace quire::plan_detail
