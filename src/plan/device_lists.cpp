// SPDX-License-Identifier: Apache-2.0
// See device_lists.h.
#include "plan/device_lists.h"

#include <algorithm>

#include "schedule/capacities.h"
#include "text/formatted.h"

namespace quire::plan_detail {
namespace {

Status too_large(const char* what, std::int64_t value) {
  return {Code::unsupported, formatted("plan: {} {} does not fit the 32-bit numbers of GPU kernels", what, value)};
}

/// Parts of fixed size in a tile, at most. Where the table's width is all that is known, this step's keys may lie far behind the
/// cached ones that a row sees, with no part between them: two cuts more (capacities.h).
std::int64_t most_parts(const DeviceList& list, const Plan& plan) {
  const Problem& p = plan.problem;
  const bool may_be_far = plan.bounds.seq_len_from_shapes && (p.has_shapes() || p.sliding_window == 1);
  const std::int64_t most_keys = plan.bounds.max_seq_len + (may_be_far ? 2 * list.split_keys : 0);
  const bool sees_all_later_keys = ((p.has_causal || !p.causal) && !p.window_right) || p.has_shapes();
  if (!p.sliding_window || sees_all_later_keys) return schedule::most_parts(most_keys, list.split_keys);
  return schedule::most_parts(most_keys, list.split_keys, std::min(*p.sliding_window, kMaxInt32),
                              std::min(p.window_right.value_or(0), kMaxInt32), list.tile_rows);
}

}  // namespace

void set_capacities(DeviceList& list, const Plan& plan, const Room& room) {
  const Bounds& bounds = plan.bounds;
  const std::int64_t kv_heads = plan.problem.num_kv_heads;
  const std::int64_t numbered = room.empty_requests ? bounds.num_reqs : std::min(bounds.num_reqs, bounds.num_tokens);
  const std::int64_t tiles = schedule::most_tiles(bounds.num_tokens * plan.problem.group(), room.lowest_tile_rows, numbered);
  const bool splits = list.split_keys > 0;
  const schedule::Capacities most = splits ? schedule::capacities_of_split(tiles, most_parts(list, plan), kv_heads)
                                           : schedule::capacities_of_target(tiles, list.target_items, kv_heads);
  list.max_slices = most.slices;
  list.max_merges = most.merges * (splits ? 1 : room.mergers);
  list.max_partials = most.partials * room.heights;
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
      decode.max_rows = kMaxInt32;  // rows stay right, and get slower, if the bounds are wrong
      lists = {decode};
    }
  }
  for (DeviceList& list : lists) set_capacities(list, plan, {.lowest_tile_rows = list.tile_rows});
  return lists;
}

std::vector<DeviceList> lists_of(const KernelRow& row, const Plan& plan) {
  std::vector<DeviceList> lists = row.gpu->lists(plan);
  for (DeviceList& list : lists) list.kernel = row;
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
