// SPDX-License-Identifier: Apache-2.0
// Capacities of a work list. Planning knows bounds, the device knows lengths; what follows holds for every batch within the
// bounds.
//
// Tiles. A request of s = query_len * group score rows has ceil(s / tile_rows) tiles, fewer than s / tile_rows + 1, and none if
// s is 0. Summed over requests:
//
//     tiles <= num_tokens * group / tile_rows + min(num_reqs, num_tokens)
//
// Parts, when the device chooses their size P. With K keys in all tiles and t = ceil(target_items / num_kv_heads) it starts at
// P >= K / t (it takes a bound for K, Tiling::most_key_tiles()) and cuts a tile of k keys into ceil(k / P) parts. Only tiles of
// more than P keys, fewer than t, come in several parts, each in fewer than k / P + 1. So
//
//     merges <= t        parts of split tiles <= 2 t        slices <= tiles + 2 t        partials <= 2 t * num_kv_heads
//
// Where a device rounds otherwise, it doubles P until they hold; it ends there, because with P past the last key every tile is
// one part, and that needs `tiles` slices and nothing else.
//
// Parts of fixed size (batch_invariant: a row's parts must not depend on the batch). A tile's keys lie in [0, max_seq_len), and
// with a window in at most window + tile_rows - 1 positions (window_right more, where requests are not causal), so it touches at
// most
//
//     n = min(ceil(max_seq_len / split_keys), (window + window_right + tile_rows - 2) / split_keys + 2)
//
// parts: slices <= tiles * n, merges <= tiles and partials <= tiles * n * num_kv_heads, or none of both if n is 1.
//
// Where max_seq_len counts the c keys that a table has room for and f of this step, these may lie far behind. Parts between the
// two are left out. c keys touch at most ceil(c / split_keys) parts and f keys ceil((f - 1) / split_keys) + 1, which is at most
// two more than ceil(max_seq_len / split_keys).
#pragma once

#include <algorithm>
#include <cstdint>

#include "semantics/ceil_div.h"

namespace quire::schedule {

struct Capacities {
  std::int64_t slices = 0, merges = 0, partials = 0;
};

/// Tiles of `reqs` requests with `rows` score rows in all.
constexpr std::int64_t most_tiles(std::int64_t rows, std::int64_t tile_rows, std::int64_t reqs) {
  return rows / tile_rows + reqs;
}

/// Parts of fixed size in a tile without a window.
constexpr std::int64_t most_parts(std::int64_t max_seq_len, std::int64_t split_keys) {
  return std::max<std::int64_t>(1, semantics::ceil_div(max_seq_len, split_keys));
}
/// The bound above where a row sees no more than `window` keys up to its own, which counts, and window_right behind it.
constexpr std::int64_t most_parts(std::int64_t max_seq_len, std::int64_t split_keys, std::int64_t window,
                                  std::int64_t window_right, std::int64_t tile_rows) {
  return std::min(most_parts(max_seq_len, split_keys), (window + window_right + tile_rows - 2) / split_keys + 2);
}

/// Capacities where the device chooses the parts' size.
constexpr Capacities capacities_of_target(std::int64_t tiles, std::int64_t target_items, std::int64_t num_kv_heads) {
  const std::int64_t items = semantics::ceil_div(target_items, num_kv_heads);
  return {tiles + 2 * items, items, 2 * items * num_kv_heads};
}

/// Capacities where a tile has `parts` parts of fixed size, at most.
constexpr Capacities capacities_of_split(std::int64_t tiles, std::int64_t parts, std::int64_t num_kv_heads) {
  if (parts == 1) return {tiles, 0, 0};
  return {tiles * parts, tiles, tiles * parts * num_kv_heads};
}

}  // namespace quire::schedule
