// SPDX-License-Identifier: Apache-2.0
// Capacities of a GPU plan. Planning knows bounds, the device knows lengths; what follows holds for every batch within the
// bounds.
//
// Tiles. A request of s = query_len * group score rows has ceil(s / tile_rows) tiles, fewer than s / tile_rows + 1, and none if
// s is 0. Summed over requests:
//
//     tiles <= num_tokens * group / tile_rows + min(num_reqs, num_tokens)
//
// Parts, when the device chooses their size P. With K keys in all tiles and t = ceil(target_items / num_kv_heads) it starts at
// P >= K / t (it takes a bound for K, see key_tiles_of()) and cuts a tile of k keys into ceil(k / P) parts. Only tiles of more
// than P keys, fewer than t, come in several parts, each in fewer than k / P + 1. So
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
#include "plan/device_lists.h"

#include <algorithm>

#include "text/formatted.h"

namespace quire::plan_detail {
namespace {

Status too_large(const char* what, std::int64_t value) {
  return {Code::unsupported, formatted("plan: {} {} does not fit the 32-bit numbers of GPU kernels", what, value)};
}

/// Parts of fixed size in a tile, at most.
std::int64_t most_parts(const DeviceList& list, const Plan& plan) {
  const Problem& p = plan.problem;
  const std::int64_t parts = std::max<std::int64_t>(1, ceil_div(plan.bounds.max_seq_len, list.split_keys));
  const bool sees_all_later_keys = (p.has_causal || !p.causal) && !p.window_right;
  if (!p.sliding_window || sees_all_later_keys) return parts;
  const std::int64_t later = std::min(p.window_right.value_or(0), kMaxInt32);
  const std::int64_t span = std::min(*p.sliding_window, kMaxInt32) + later + list.tile_rows - 2;
  return std::min(parts, span / list.split_keys + 2);
}

}  // namespace

/// See the top of this file.
void set_capacities(DeviceList& list, const Plan& plan, const Room& room) {
  const Bounds& bounds = plan.bounds;
  const std::int64_t kv_heads = plan.problem.num_kv_heads;
  const std::int64_t numbered = room.empty_requests ? bounds.num_reqs : std::min(bounds.num_reqs, bounds.num_tokens);
  const std::int64_t tiles = bounds.num_tokens * plan.problem.group() / room.lowest_tile_rows + numbered;
  if (list.split_keys == 0) {
    const std::int64_t items = ceil_div(list.target_items, kv_heads);
    list.max_slices = tiles + 2 * items;
    list.max_merges = room.mergers * items;
    list.max_partials = 2 * items * kv_heads * room.heights;
    return;
  }
  const std::int64_t parts = most_parts(list, plan);
  list.max_slices = tiles * parts;
  list.max_merges = parts > 1 ? tiles : 0;
  list.max_partials = parts > 1 ? tiles * parts * kv_heads * room.heights : 0;
}

DeviceList tall_list(const Plan& plan, KernelHandle kernel, const ShortAndTall& tiles) {
  DeviceList tall;
  tall.kernel = kernel;
  tall.role = Role::tall_rows;
  tall.tile_rows = tiles.tall_rows;
  tall.tile_keys = tiles.tile_keys;
  tall.max_rows = kMaxInt32;
  tall.num_blocks = tall.target_items = plan.num_threads * tiles.blocks_per_unit;
  tall.split_keys = plan.batch_invariant ? kInvariantSplitKeys : 0;
  return tall;
}

/// Decode rows and the rest. One item a block measured fastest for both: a second round of items costs more than it evens out.
/// A list that no request of the plan can enter is left out: it would cost two launches (the first where one query row is already
/// more score rows than it takes). A row's bits would depend on the list that serves it, so batch_invariant plans have the tall
/// one alone.
std::vector<DeviceList> short_and_tall_lists(const Plan& plan, KernelHandle kernel, const ShortAndTall& tiles) {
  DeviceList tall = tall_list(plan, kernel, tiles), decode = tall;
  decode.role = Role::short_rows;
  decode.tile_rows = decode.max_rows = tiles.short_rows;
  std::vector<DeviceList> lists = {tall};
  if (!plan.batch_invariant && plan.problem.group() <= tiles.short_rows) {
    tall.min_rows = tiles.short_rows;
    lists = {decode, tall};
    if (plan.bounds.max_query_len * plan.problem.group() <= tiles.short_rows) {
      decode.max_rows = kMaxInt32;  // also right, if slower, should the bounds be wrong
      lists = {decode};
    }
  }
  for (DeviceList& list : lists) set_capacities(list, plan, {.lowest_tile_rows = list.tile_rows});
  return lists;
}

Bounds bounds_of(const Problem& problem) {
  return {static_cast<std::int64_t>(problem.reqs.size()), problem.num_tokens() + problem.num_padding_rows,
          problem.max_query_len(), problem.max_seq_len()};
}

Status size_lists(Plan& plan) {
  const Bounds& b = plan.bounds;
  const Problem& p = plan.problem;
  for (const auto& [what, value] :
       {std::pair{"num_reqs", b.num_reqs}, std::pair{"max_seq_len", b.max_seq_len}, std::pair{"num_q_heads", p.num_q_heads},
        std::pair{"head_dim", p.head_dim}, std::pair{"v_head_dim", p.out_dim()}, std::pair{"page_size", p.page_size}})
    if (value > kMaxInt32) return too_large(what, value);
  if (b.num_tokens > kMaxInt32 / p.num_q_heads) return too_large("num_tokens * num_q_heads, from num_tokens", b.num_tokens);
  plan.set_work({.tiles = {}, .lists = plan.kernel.row().gpu->lists(plan)});
  for (const DeviceList& list : plan.work().lists) {
    if (list.max_slices * plan.problem.num_kv_heads > kMaxInt32) return too_large("the number of work items", list.max_slices);
    if (list.max_partials > kMaxInt32) return too_large("the number of partial tiles", list.max_partials);
    constexpr double kMaxBytes = 1e18;
    if (static_cast<double>(list.max_partials * list.tile_rows) * static_cast<double>(p.out_dim()) * 4 > kMaxBytes)
      return too_large("v_head_dim with that many partial tiles, v_head_dim", p.out_dim());
  }
  return {};
}

}  // namespace quire::plan_detail
