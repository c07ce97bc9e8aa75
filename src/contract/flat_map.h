// SPDX-License-Identifier: Apache-2.0
// A hash map from int64 keys, filled once and then asked many times. One allocation, sized on construction.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace quire::contract {

template <typename Value>
class FlatMap {
 public:
  /// Room for `count` keys at a load of at most one half.
  explicit FlatMap(std::int64_t count)
      : cells_(std::bit_ceil(static_cast<std::size_t>(count) * 2 + 2)), mask_(cells_.size() - 1) {}

  /// Keeps the first value of a key: null if it is new, else what is stored.
  const Value* insert(std::int64_t key, const Value& value) {
    Cell& cell = cells_[index_of(key)];
    if (cell.used) return &cell.value;
    cell = {key, value, true};
    return nullptr;
  }

  const Value* find(std::int64_t key) const {
    const Cell& cell = cells_[index_of(key)];
    return cell.used ? &cell.value : nullptr;
  }

 private:
  struct Cell {
    std::int64_t key = 0;
    Value value{};
    bool used = false;
  };

  /// The cell that holds `key`, or the free one where it would go.
  std::size_t index_of(std::int64_t key) const {
    std::uint64_t hash = static_cast<std::uint64_t>(key) * 0x9E3779B97F4A7C15u;  // Fibonacci hashing
    std::size_t i = static_cast<std::size_t>(hash ^ hash >> 32) & mask_;
    while (cells_[i].used && cells_[i].key != key) i = (i + 1) & mask_;
    return i;
  }

  std::vector<Cell> cells_;
  std::size_t mask_;
};

}  // namespace quire::contract
