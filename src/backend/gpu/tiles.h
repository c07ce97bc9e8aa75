// SPDX-License-Identifier: Apache-2.0
// Stage: attend, schedule. The tiles of score rows of one work list, as src/schedule/tiles.h cuts them.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "schedule/cuts.h"
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

/// Parts of fixed size whose keys are all cached and behind the table, where no row sees a key (Q-T10): they are left out. The
/// plan knows the table and no lengths, so it has no room for them. Without masks, a tile has no such part between its others.
template <class Keys>
QUIRE_DEVICE schedule::TileGap<std::int32_t> parts_behind_table(const AttendArgs& a, std::int32_t req, const Keys& tile) {
  if (!a.has_masks || a.work.split_keys <= 0) return {};
  const std::int64_t held = a.block_table.columns * a.page_size;
  const std::int32_t cached_len = lengths_of(a, req).cached_len;
  if (held >= cached_len) return {};
  return schedule::parts_in_gap<std::int32_t>({tile.key_begin, tile.key_end}, static_cast<std::int32_t>(held), cached_len,
                                              a.work.split_keys);
}

}  // namespace quire::gpu
