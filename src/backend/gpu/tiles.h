// SPDX-License-Identifier: Apache-2.0
// Stage: attend, schedule. The tiles of score rows of one work list, as src/schedule/tiles.h cuts them.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "schedule/tiles.h"

namespace quire::gpu {

using Tile = schedule::Tile<std::int32_t>;

/// num_tokens * num_q_heads fits 32 bits (plan() refuses more), so score rows do.
QUIRE_DEVICE schedule::Tiling<std::int32_t> tiling_of(const AttendArgs& a) {
  return {a.group, a.work.tile_rows, a.work.tile_keys, a.work.min_rows, a.work.max_rows};
}

/// Tiles of a request are counted from its last.
QUIRE_DEVICE Tile tile_at(const AttendArgs& a, std::int32_t req, std::int32_t from_last) {
  const Lengths n = lengths_of(a, req);
  const Sight sight = sight_of(a, req, n);
  return tiling_of(a).tile(n.query_len, from_last,
                           [&](std::int32_t first, std::int32_t last) { return sight.of_rows(first, last); });
}

}  // namespace quire::gpu
