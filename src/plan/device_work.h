// SPDX-License-Identifier: Apache-2.0
// Stage: explain. What the device will make of one list of a GPU plan when lengths are known: how much its busiest unit has to
// do.
#pragma once

#include <cstdint>

#include "plan/kernel.h"

namespace quire::plan_detail {

/// Seconds of an item and of a tile, by which items find their unit.
struct ItemCosts {
  double item = 0, tile = 0;
};

struct ListWork {
  std::int64_t items = 0;          ///< parts of tiles of score rows, times KV heads
  std::int64_t busiest_items = 0;  ///< of the unit with most work
  std::int64_t busiest_tiles = 0;
  std::int64_t merges = 0;  ///< tiles of several parts, times KV heads
  double read_bytes = 0;    ///< of K and V that the rows see, each counted once
};

/// Counts a list's work with the cuts or shares of src/schedule/, as the device makes them. false if there
/// are more tiles than are worth counting.
bool count_work(const Plan& plan, const DeviceList& list, const ItemCosts& costs, ListWork& work);

}  // namespace quire::plan_detail
