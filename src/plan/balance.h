// SPDX-License-Identifier: Apache-2.0
// Sharing items among threads: what list scheduling makes of a list, and which tiles must be split for it to come out even.
#pragma once

#include <vector>

#include "plan/cost.h"
#include "plan/work.h"

namespace quire::plan_detail {

/// Segments of plan.split_keys keys (counted from position 0) that the tile's keys touch.
std::int64_t segments_of(const WorkTile& tile, std::int64_t split_keys);

/// Cost of the heaviest item of a tile.
double item_cost(const CostModel& cost, const WorkTile& tile, std::int64_t split_keys);

/// Sets num_parts of the tiles whose items would keep one thread busy after the others are done. `total` is the cost of all tiles
/// for one KV head. Afterwards the busiest thread has at most 9/8 of the mean, as far as segments are fine enough.
void choose_splits(std::vector<WorkTile>& tiles, const Plan& plan, const CostModel& cost, double total);

}  // namespace quire::plan_detail
