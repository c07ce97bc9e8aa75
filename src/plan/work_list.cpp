// SPDX-License-Identifier: Apache-2.0
// Tiles: (request, query rows, keys), split over keys where one item would keep a thread busy alone, heaviest items first. A tile
// stands for the items of all KV heads and segments, so the list stays short; item_of() and merge_of() count them out.
#include "plan/work_list.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "plan/cost.h"
#include "plan/heaviest_first.h"
#include "plan/kernel.h"
#include "plan/work.h"
#include "semantics/ceil_div.h"
#include "semantics/visible_range.h"

namespace quire {
namespace plan_detail {
namespace {

constexpr std::int64_t kTileKv = 128, kSplitKeys = 1024;  ///< a segment is a whole number of tiles

/// Score rows (query rows x heads of the group) of a tile: as many as fill half of L2 with their queries, accumulators and
/// totals, beside the K and V panels of a tile. More rows share the packing of a tile; 256 leave little of it.
std::int64_t score_rows(const Problem& problem, std::int64_t l2_bytes) {
  const std::int64_t dim = (problem.head_dim + 15) / 16 * 16, v_dim = (problem.out_dim() + 15) / 16 * 16;
  const std::int64_t panels = kTileKv * (dim + v_dim), row = dim + 2 * v_dim;
  const std::int64_t fit = (l2_bytes / 2 / static_cast<std::int64_t>(sizeof(float)) - panels) / row;
  return std::clamp<std::int64_t>(fit / 16 * 16, 64, 256);
}

void choose_shapes(Plan& plan) {
  plan.tile_kv = kTileKv;
  plan.split_keys = kSplitKeys;
  // Both paths are deterministic, but a row's bits may differ between the paths, and the chunk decides the path of a row.
  plan.direct_rows = plan.batch_invariant ? 0 : plan.kernel.row().cpu->direct_rows;
  plan.tile_q = std::max<std::int64_t>(1, score_rows(plan.problem, plan.device.l2_bytes) / plan.problem.group());
}

/// Problem::visible_keys() at the price of causal rows where there are no others: an engine plans each step.
KeyPositions keys_of(const Problem& p, const Request& req, std::int64_t first_row, std::int64_t last_row) {
  if (!p.is_causal_at_end()) return p.visible_keys(req, first_row, last_row);
  const semantics::KeyRange keys =
      semantics::visible_range(req.context_len + first_row, req.context_len + last_row, p.sliding_window.value_or(0));
  return {keys.begin, keys.end};
}

/// Returns every tile unsplit, in order of requests and rows.
std::vector<WorkTile> whole_tiles(const Plan& plan) {
  const Problem& p = plan.problem;
  std::int64_t num_tiles = 0;
  for (const Request& req : p.reqs) num_tiles += semantics::ceil_div(req.query_len, plan.tile_q);
  std::vector<WorkTile> tiles;
  tiles.reserve(static_cast<std::size_t>(num_tiles));
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    const Request& req = p.reqs[r];
    for (std::int64_t row = 0; row < req.query_len; row += plan.tile_q) {
      const std::int64_t row_end = std::min(req.query_len, row + plan.tile_q);
      const KeyPositions keys = keys_of(p, req, row, row_end - 1);
      WorkTile& tile = tiles.emplace_back();
      tile.req = static_cast<std::int32_t>(r);
      tile.row_begin = static_cast<std::int32_t>(row);
      tile.row_end = static_cast<std::int32_t>(row_end);
      tile.key_begin = keys.begin;
      tile.key_end = keys.end;
    }
  }
  return tiles;
}

/// Appends the tiles in order of their heaviest item, and numbers items, merges and partial rows.
void number_tiles(Plan& plan, const std::vector<WorkTile>& tiles, const CostModel& cost) {
  std::vector<CostKey> order(tiles.size());
  for (std::size_t i = 0; i < tiles.size(); ++i) order[i] = cost_key(item_cost(cost, tiles[i], plan.split_keys), i);
  sort_heaviest_first(order);

  const std::int64_t num_kv_heads = plan.problem.num_kv_heads;
  std::int64_t items = 0, merges = 0;
  Work work;
  work.tiles.reserve(tiles.size());
  for (const CostKey key : order) {
    WorkTile& tile = work.tiles.emplace_back(tiles[index_of(key)]);
    tile.first_item = items;
    tile.first_merge = merges;
    items += tile.num_parts * num_kv_heads;
    if (tile.num_parts == 1) continue;
    tile.first_partial = plan.num_partials;
    merges += num_kv_heads;
    plan.num_partials += plan.problem.num_q_heads * (tile.row_end - tile.row_begin) * tile.num_parts;
  }
  plan.set_work(std::move(work));
}

/// The tile that holds an item; index in [0, num_items()).
const WorkTile& tile_of_item(const Plan& plan, std::int64_t index) {
  const auto starts_later = [](std::int64_t i, const WorkTile& tile) { return i < tile.first_item; };
  return *(std::upper_bound(plan.work().tiles.begin(), plan.work().tiles.end(), index, starts_later) - 1);
}

}  // namespace

void count_traffic(Plan& plan) {
  const Problem& p = plan.problem;
  std::int64_t keys = 0;
  for (const Request& req : p.reqs) {
    if (req.query_len == 0) continue;
    const KeyPositions range = keys_of(p, req, 0, req.query_len - 1);
    keys += range.end - range.begin;
  }
  const std::int64_t dims = p.head_dim + p.out_dim();
  plan.kv_bytes = keys * p.num_kv_heads * p.kv_bytes();
  plan.flops = 2.0 * static_cast<double>(dims) * static_cast<double>(p.num_q_heads) * static_cast<double>(p.visible_pairs());
}

void cut_work(Plan& plan) {
  choose_shapes(plan);
  std::vector<WorkTile> tiles = whole_tiles(plan);
  const CostModel cost(plan.problem);
  double total = 0;
  for (const WorkTile& tile : tiles) total += item_cost(cost, tile, plan.split_keys);
  choose_splits(tiles, plan, cost, total);
  number_tiles(plan, tiles, cost);
  count_traffic(plan);
}

// Within a tile: all heads of its first segment, then of its second, so that neighbouring items read the same pages.
WorkItem item_of(const Plan& plan, std::int64_t index) noexcept {
  const WorkTile& tile = tile_of_item(plan, index);
  const std::int64_t part = (index - tile.first_item) / plan.problem.num_kv_heads;
  const std::int64_t head = (index - tile.first_item) % plan.problem.num_kv_heads;
  WorkItem item{tile.req, static_cast<std::int32_t>(head), tile.row_begin, tile.row_end, tile.key_begin, tile.key_end, -1};
  if (tile.num_parts == 1) return item;
  const std::int64_t rows = (tile.row_end - tile.row_begin) * plan.problem.group();
  const std::int64_t segment = tile.key_begin / plan.split_keys + part;
  item.key_begin = std::max(tile.key_begin, segment * plan.split_keys);
  item.key_end = std::min(tile.key_end, (segment + 1) * plan.split_keys);
  item.partial = tile.first_partial + (head * tile.num_parts + part) * rows;
  return item;
}

std::int64_t merge_after(const Plan& plan, std::int64_t index) noexcept {
  const WorkTile& tile = tile_of_item(plan, index);
  return tile.num_parts == 1 ? -1 : tile.first_merge + (index - tile.first_item) % plan.problem.num_kv_heads;
}

MergeItem merge_of(const Plan& plan, std::int64_t index) noexcept {
  // The last tile that starts at or before the index is a split one: unsplit tiles add no merges.
  const std::vector<WorkTile>& tiles = plan.work().tiles;
  const auto after = std::upper_bound(tiles.begin(), tiles.end(), index,
                                      [](std::int64_t i, const WorkTile& tile) { return i < tile.first_merge; });
  const WorkTile& tile = *(after - 1);
  const std::int64_t head = index - tile.first_merge;
  const std::int64_t rows = (tile.row_end - tile.row_begin) * plan.problem.group();
  return {tile.req,
          static_cast<std::int32_t>(head),
          tile.row_begin,
          tile.row_end,
          tile.first_partial + head * tile.num_parts * rows,
          tile.num_parts};
}

}  // namespace plan_detail

const plan_detail::Work& Plan::work() const noexcept {
  static const plan_detail::Work none;
  return work_ == nullptr ? none : *work_;
}

void Plan::set_work(plan_detail::Work work) { work_ = std::make_shared<const plan_detail::Work>(std::move(work)); }

std::int64_t Plan::num_items() const noexcept {
  const std::vector<plan_detail::WorkTile>& tiles = work().tiles;
  return tiles.empty() ? 0 : tiles.back().first_item + tiles.back().num_parts * problem.num_kv_heads;
}

std::int64_t Plan::num_merges() const noexcept {
  const std::vector<plan_detail::WorkTile>& tiles = work().tiles;
  if (tiles.empty()) return 0;
  return tiles.back().first_merge + (tiles.back().num_parts == 1 ? 0 : problem.num_kv_heads);
}

}  // namespace quire
