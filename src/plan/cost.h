// SPDX-License-Identifier: Apache-2.0
// Cost of work in bytes, by which CPU plans order, split and balance work. The cost decides which thread does an item and when,
// never what is computed.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/work.h"
#include "quire/plan.hpp"

namespace quire::plan_detail {

/// cost = bytes of K and V + flops / kFlopsPerByte + kItemBytes, for one KV head.
class CostModel {
 public:
  explicit CostModel(const Problem& p)
      : key_bytes_(static_cast<double>(p.kv_bytes())),
        row_bytes_(static_cast<double>(2 * (p.head_dim + p.out_dim()) * p.group()) / kFlopsPerByte) {}

  /// `rows` query rows (each of all query heads of the group) against `keys` keys of one KV head.
  double operator()(std::int64_t rows, std::int64_t keys) const {
    return static_cast<double>(keys) * (key_bytes_ + row_bytes_ * static_cast<double>(rows)) + kItemBytes;
  }

 private:
  // Floating-point operations in the time in which one thread reads one byte of the cache from memory. Source: Emerald Rapids,
  // 2026-11, 234 GFLOP/s of bf16 dot products and 29.6 GB/s of gathered pages. A wrong value unbalances threads.
  static constexpr double kFlopsPerByte = 8;
  // Fixed cost of an item, in bytes: taking it, finding its first pages, loading query rows, storing output; below 1 us in all.
  static constexpr double kItemBytes = 8192;

  double key_bytes_;  ///< K and V of one key
  double row_bytes_;  ///< cost of one query row against one key
};

/// Segments of plan.split_keys keys (counted from position 0) that the tile's keys touch.
std::int64_t segments_of(const WorkTile& tile, std::int64_t split_keys);

/// Cost of the heaviest item of a tile.
double item_cost(const CostModel& cost, const WorkTile& tile, std::int64_t split_keys);

/// Sets num_parts of the tiles whose items would keep one thread busy after the others are done. `total` is the cost of all tiles
/// for one KV head. Afterwards the busiest thread has at most 9/8 of the mean, as far as segments are fine enough.
void choose_splits(std::vector<WorkTile>& tiles, const Plan& plan, const CostModel& cost, double total);

}  // namespace quire::plan_detail
