// SPDX-License-Identifier: Apache-2.0
// See device_work.h.
#include "plan/device_work.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "schedule/cuts.h"
#include "schedule/key_tiles.h"
#include "schedule/shares.h"
#include "schedule/tiles.h"
#include "semantics/ceil_div.h"

namespace quire::plan_detail {
namespace {

constexpr std::int64_t kMostTiles = std::int64_t{1} << 20;  ///< that are counted, and items that are dealt one by one
using Tile = schedule::Tile<std::int64_t>;

/// The cuts of a list.
class Cuts {
 public:
  Cuts(const Plan& plan, const DeviceList& list)
      : p_(plan.problem), list_(list), tiling_{p_.group(), list.tile_rows, list.tile_keys, list.min_rows, list.max_rows} {}

  std::int64_t row_tiles(const Request& r) const { return tiling_.tiles(r.query_len); }
  /// Counted from the last.
  Tile tile(const Request& r, std::int64_t from_last) const {
    return tiling_.tile(r.query_len, from_last,
                        [&](std::int64_t first, std::int64_t last) { return p_.visible_keys(r, first, last); });
  }
  std::int64_t key_tiles(const Tile& tile) const { return tiling_.key_tiles(tile); }
  std::int64_t read_bytes(const Request& r) const {
    std::int64_t keys = 0;
    for (const KeyPositions& range : p_.visible_ranges(r)) keys += range.end - range.begin;
    return keys * p_.num_kv_heads * p_.kv_bytes();
  }
  /// The part size, where the list does not fix it.
  std::int32_t part_tiles() const {
    if (list_.split_keys > 0) return schedule::kUncut;
    std::int64_t all = 0;
    for (const Request& r : p_.reqs)
      if (const std::int64_t tiles = row_tiles(r); tiles > 0)
        all += tiling_.most_key_tiles(tiles, r.context_len, r.seq_len(), p_.sliding_window.value_or(0), !p_.is_causal_at_end());
    const std::int32_t first = schedule::first_part_tiles(all, p_.num_kv_heads, list_.target_items);
    return schedule::chosen_part_tiles(first, [&](int i) {
      std::int64_t slices = 0;
      for (const Request& r : p_.reqs)
        if (const std::int64_t tiles = row_tiles(r); tiles > 0)
          slices += schedule::tried_parts(tiles, key_tiles(tile(r, 0)), schedule::tried_part_tiles(first, i));
      return slices <= list_.target_items / p_.num_kv_heads;
    });
  }
  /// Calls visit(tiles of keys) for each part of a request's tile; returns their number. Cuts know no gap between ranges that
  /// rows see, but tiles of keys that lie in one are skipped.
  template <typename Visit>
  std::int64_t for_each_part(const Request& r, const Tile& tile, std::int32_t part_tiles, Visit&& visit) const {
    const auto ranges = p_.visible_ranges(r, tile.row_begin / p_.group(), (tile.row_end - 1) / p_.group());
    const auto cuts = schedule::cuts_of(tiling_, tile, list_.split_keys, part_tiles);
    const std::int64_t first_cut = schedule::cut_origin(tile.key_begin, list_.split_keys) + cuts.keys;
    for (std::int64_t part = 0; part < cuts.parts; ++part) {
      const auto keys = schedule::part_of<std::int64_t>({tile.key_begin, tile.key_end}, part, first_cut, cuts.keys);
      std::int64_t skipped = 0, begin = 0;
      for (const KeyPositions& range : ranges) {
        if (range.end == 0) continue;
        if (begin > 0)
          skipped += schedule::tiles_in_gap<std::int64_t>(0, keys.begin, keys.end, begin, range.begin, list_.tile_keys).count();
        begin = range.end;
      }
      visit(key_tiles({tile.row_begin, tile.row_end, keys.begin, keys.end}) - skipped);
    }
    return cuts.parts;
  }

 private:
  const Problem& p_;
  const DeviceList& list_;
  const schedule::Tiling<std::int64_t> tiling_;
};

/// Whoever is free first draws the next item.
class Dealer {
 public:
  Dealer(std::int64_t units, const ItemCosts& costs) : costs_(costs) {
    for (std::int64_t i = 0; i < units; ++i) units_.push({});
  }
  void deal(std::int64_t tiles) {
    auto [seconds, has_items, has_tiles] = units_.top();
    units_.pop();
    const Unit now{seconds + costs_.item + costs_.tile * static_cast<double>(tiles), has_items + 1, has_tiles + tiles};
    busiest_ = std::max(busiest_, now);
    units_.push(now);
  }
  void finish(ListWork& work) const { std::tie(std::ignore, work.busiest_items, work.busiest_tiles) = busiest_; }

 private:
  using Unit = std::tuple<double, std::int64_t, std::int64_t>;  ///< seconds, items, tiles
  const ItemCosts costs_;
  std::priority_queue<Unit, std::vector<Unit>, std::greater<>> units_;
  Unit busiest_;
};

/// Lengths of a problem's requests, for shares.
struct Requests {
  struct Lengths {
    std::int64_t first_token = 0, query_len = 0, context_len = 0;
  };
  const std::vector<Request>& reqs;
  Lengths lengths(std::int64_t req) const {
    const Request& r = reqs[static_cast<std::size_t>(req)];
    return {0, r.query_len, r.context_len};
  }
};

/// Equal shares of all iterations, one a block. The busiest block is the one with most to do, where a piece counts as a tile.
void count_shares(const Plan& plan, const DeviceList& list, const Body& body, ListWork& work) {
  using Args = schedule::ShareArgs<std::int64_t>;
  const Problem& p = plan.problem;
  const Args args{static_cast<std::int64_t>(p.reqs.size()),
                  p.num_kv_heads / list.heads,
                  p.group() * list.heads,
                  p.sliding_window.value_or(0),
                  {list.tile_rows, list.min_rows, list.max_rows, list.split_keys}};
  const schedule::Iterations<Args, true> iterations(args, list.num_blocks);
  std::int64_t all = 0;
  for (const Request& r : p.reqs) all += iterations.of_head(r.query_len, r.context_len) * args.num_kv_heads;
  if (all == 0) return;
  const bool small_rows = body.small_row_shares != nullptr && (itemsize(p.kv_dtype) == 1 || list.heads > 1);
  const auto& shares = small_rows ? *body.small_row_shares : body.shares;
  const std::int64_t share =
      schedule::share_of(all, iterations.segments(), list.num_blocks, {shares.least, shares.whole, shares.part});
  schedule::Pieces<Args, true, Requests> pieces(iterations, {p.reqs}, all, share, 0,
                                                [](std::int64_t) { return schedule::WorkEntry<std::int64_t>{}; });
  for (std::int64_t block = 0; block < list.num_blocks; ++block) {
    pieces.begin_share(block, all);
    std::int64_t items = 0, tiles = 0;
    for (schedule::Piece<std::int64_t> piece; pieces.next(piece); ++items) {
      const auto parts = pieces.parts_of(piece);
      tiles += piece.end - piece.first;
      work.merges += parts.part == 0 && parts.count > 1 ? 1 : 0;
    }
    work.items += items;
    if (std::pair(tiles + items, items) > std::pair(work.busiest_tiles + work.busiest_items, work.busiest_items))
      work.busiest_tiles = tiles, work.busiest_items = items;
  }
}

/// The blocks of a cluster share one segment, however much other clusters have to do.
void count_clusters(const Plan& plan, const Cuts& cuts, std::int64_t blocks, ListWork& work) {
  const std::int64_t heads = plan.problem.num_kv_heads;
  for (const Request& r : plan.problem.reqs) {
    if (cuts.row_tiles(r) == 0) continue;
    work.items += heads * blocks;
    work.busiest_items = 1;
    work.busiest_tiles = std::max(work.busiest_tiles, semantics::ceil_div(cuts.key_tiles(cuts.tile(r, 0)), blocks));
    work.merges += blocks > 1 ? heads : 0;
  }
}

void count_items(const Plan& plan, const Cuts& cuts, Dealer dealer, ListWork& work) {
  const std::int32_t part_tiles = cuts.part_tiles();
  const std::int64_t heads = plan.problem.num_kv_heads;
  for (const Request& r : plan.problem.reqs)
    for (std::int64_t i = 0, tiles = cuts.row_tiles(r); i < tiles; ++i) {
      const std::int64_t parts = cuts.for_each_part(r, cuts.tile(r, i), part_tiles, [&](std::int64_t key_tiles) {
        for (std::int64_t head = 0; head < heads && work.items < kMostTiles; ++head, ++work.items) dealer.deal(key_tiles);
      });
      work.merges += parts > 1 ? heads : 0;
    }
  dealer.finish(work);
}

}  // namespace

bool count_work(const Plan& plan, const DeviceList& list, const ItemCosts& costs, ListWork& work) {
  const Body& body = body_of(list);
  const Cuts cuts(plan, list);
  std::int64_t row_tiles = 0;
  for (const Request& r : plan.problem.reqs) {
    const std::int64_t tiles = cuts.row_tiles(r);
    row_tiles += std::min(tiles, kMostTiles);
    if (tiles > 0) work.read_bytes += static_cast<double>(cuts.read_bytes(r));
  }
  if (row_tiles * plan.problem.num_kv_heads > kMostTiles) return false;
  if (list.role == Role::decode_cluster)
    count_clusters(plan, cuts, list.cluster, work);
  else if (body.deals_itself())
    count_shares(plan, list, body, work);
  else
    count_items(plan, cuts, Dealer(list.num_blocks / body.blocks_per_unit, costs), work);
  return work.items < kMostTiles;
}

}  // namespace quire::plan_detail
