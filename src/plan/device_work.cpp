// SPDX-License-Identifier: Apache-2.0
// See device_work.h.
#include "plan/device_work.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace quire::plan_detail {
namespace {

constexpr std::int64_t kMostTiles = std::int64_t{1} << 20;  ///< that are counted, and items that are dealt one by one
constexpr std::int64_t kMinPartTiles = 4;                   ///< schedule.h
constexpr std::int64_t kPartSizes = 9;

/// Tiles of keys under one tile of score rows, and from which key they are counted.
struct RowTile {
  std::int64_t key_begin = 0, key_tiles = 0;
};

class Cuts {
 public:
  Cuts(const Plan& plan, const DeviceList& list) : p_(plan.problem), list_(list) {}

  std::int64_t row_tiles(const Request& r) const {
    const std::int64_t rows = r.query_len * p_.group();
    return rows <= list_.min_rows || rows > list_.max_rows ? 0 : (rows - 1) / list_.tile_rows + 1;
  }
  /// Counted from the last.
  RowTile tile(const Request& r, std::int64_t from_last) const {
    const std::int64_t rows = r.query_len * p_.group(), begin = (row_tiles(r) - 1 - from_last) * list_.tile_rows;
    const std::int64_t end = std::min(begin + list_.tile_rows, rows);
    const KeyPositions keys = p_.visible_keys(r, begin / p_.group(), (end - 1) / p_.group());
    const std::int64_t first = keys.begin / list_.tile_keys * list_.tile_keys;
    return {first, (keys.end - first - 1) / list_.tile_keys + 1};
  }
  std::int64_t read_bytes(const Request& r) const {
    const KeyPositions keys = p_.visible_keys(r);
    return (keys.end - keys.begin) * p_.num_kv_heads * (p_.head_dim + p_.out_dim()) * itemsize(p_.kv_dtype);
  }
  /// Tiles of keys in each part but the last of a tile, given the part size of the list.
  std::int64_t part_of(const RowTile& tile, std::int64_t part_tiles) const {
    if (list_.split_keys > 0) return list_.split_keys / list_.tile_keys;
    const std::int64_t wanted = (tile.key_tiles - 1) / part_tiles + 1;
    return (tile.key_tiles - 1) / wanted + 1;
  }
  /// schedule.h's bound for the tiles of keys under all tiles of a request.
  std::int64_t bound_of_key_tiles(const Request& r) const {
    const std::int64_t tiles = row_tiles(r), reach = (list_.tile_rows - 1) / p_.group() + 1;
    if (!p_.is_causal_at_end()) return tiles * (r.seq_len() / list_.tile_keys + 1);
    const std::int64_t last_end = r.context_len + (tiles * list_.tile_rows - 1) / p_.group() + 1;
    const std::int64_t grown = tiles * (r.context_len + reach + last_end) / 2 / list_.tile_keys + tiles;
    if (!p_.sliding_window) return grown;
    return std::min(grown, tiles * ((reach + *p_.sliding_window + 2 * (list_.tile_keys - 1)) / list_.tile_keys));
  }
  /// As few parts as make about target_items items in all.
  std::int64_t part_tiles() const {
    std::int64_t all = 0;
    for (const Request& r : p_.reqs)
      if (row_tiles(r) > 0) all += bound_of_key_tiles(r);
    const std::int64_t even = (all * p_.num_kv_heads + list_.target_items - 1) / std::max<std::int64_t>(1, list_.target_items);
    const std::int64_t least = std::max(kMinPartTiles, even), room = list_.target_items / p_.num_kv_heads;
    for (std::int64_t i = 0; i < kPartSizes; ++i) {
      const std::int64_t tried = least + least * i / (kPartSizes - 1);
      std::int64_t slices = 0;
      for (const Request& r : p_.reqs)
        if (const std::int64_t tiles = row_tiles(r); tiles > 0) slices += ((tile(r, 0).key_tiles - 1) / tried + 1) * tiles;
      if (slices <= room) return tried;
    }
    return least;
  }

 private:
  const Problem& p_;
  const DeviceList& list_;
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

/// The deal of sm90/decode/scheduler.h: segments of tiles, in a row of places.
class Shares {
 public:
  Shares(const Plan& plan, const DeviceList& list)
      : body_(body_of(list)),
        segments_(static_cast<std::int64_t>(plan.problem.reqs.size()) * plan.problem.num_kv_heads),
        part_tiles_(list.split_keys / list.tile_keys),
        of_piece_(part_tiles_ > 0 || segments_ >= 2 * list.num_blocks ? 1 : 0),
        blocks_(static_cast<std::size_t>(list.num_blocks)) {}

  std::int64_t places(const RowTile& tile, std::int64_t tile_keys) const {
    return tile.key_tiles + of_piece_ * parts(tile.key_begin / tile_keys, tile.key_tiles);
  }
  void set_share(std::int64_t places) {
    share_ = std::max((places - 1) / list_blocks() + 1, body_.least_share);
    if (body_.whole_share > 0 && share_ >= body_.whole_share) share_ = whole_share(places);
  }

  void deal(const RowTile& tile, std::int64_t tile_keys, ListWork& work) {
    const std::int64_t first = tile.key_begin / tile_keys;
    std::int64_t pieces = 0;
    if (part_tiles_ > 0) {
      for (std::int64_t at = first, end = first + tile.key_tiles; at < end; ++pieces) {
        const std::int64_t cut = std::min((at / part_tiles_ + 1) * part_tiles_, end);
        give(at_ / share_, cut - at);
        at_ += cut - at + of_piece_;
        at = cut;
      }
    } else {
      at_ += of_piece_;
      for (std::int64_t end = at_ + tile.key_tiles; at_ < end; ++pieces) {
        const std::int64_t cut = std::min((at_ / share_ + 1) * share_, end);
        give(at_ / share_, cut - at_);
        at_ = cut;
      }
    }
    work.items += pieces;
    work.merges += pieces > 1 ? 1 : 0;
  }
  /// Of the block with most to do, a piece counting as a tile.
  void finish(ListWork& work) const {
    const auto busiest = std::max_element(blocks_.begin(), blocks_.end(), [](const Load& a, const Load& b) {
      return std::pair(a.tiles + a.pieces, a.pieces) < std::pair(b.tiles + b.pieces, b.pieces);
    });
    work.busiest_tiles = busiest->tiles, work.busiest_items = busiest->pieces;
  }

 private:
  struct Load {
    std::int64_t tiles = 0, pieces = 0;
  };
  /// sm90/decode/scheduler.h, whole_share()
  std::int64_t whole_share(std::int64_t places) const {
    const std::int64_t length = places / segments_;
    if (length * segments_ != places) return share_;
    const std::int64_t whole = share_ >= length ? ((share_ - 1) / length + 1) * length : (length - 1) / (length / share_) + 1;
    return whole - share_ <= share_ / body_.whole_share ? whole : share_;
  }
  std::int64_t list_blocks() const { return static_cast<std::int64_t>(blocks_.size()); }
  std::int64_t parts(std::int64_t first, std::int64_t tiles) const {
    return part_tiles_ == 0 ? 1 : (first + tiles - 1) / part_tiles_ - first / part_tiles_ + 1;
  }
  void give(std::int64_t block, std::int64_t tiles) {
    Load& load = blocks_[static_cast<std::size_t>(block)];
    load.tiles += tiles, ++load.pieces;
  }

  const Body& body_;
  std::int64_t segments_;  ///< of requests of one slice
  std::int64_t part_tiles_, of_piece_, share_ = 1, at_ = 0;
  std::vector<Load> blocks_;
};

/// Calls visit(slice) for every segment in the order of the row.
template <typename Visit>
void for_each_segment(const Plan& plan, const Cuts& cuts, Visit&& visit) {
  for (const Request& r : plan.problem.reqs)
    for (std::int64_t head = 0, slices = cuts.row_tiles(r); head < plan.problem.num_kv_heads; ++head)
      for (std::int64_t i = slices - 1; i >= 0; --i) visit(cuts.tile(r, i));
}

/// Equal shares of all places, one a block.
void count_shares(const Plan& plan, const DeviceList& list, const Cuts& cuts, ListWork& work) {
  Shares shares(plan, list);
  std::int64_t all = 0;
  for_each_segment(plan, cuts, [&](const RowTile& tile) { all += shares.places(tile, list.tile_keys); });
  if (all == 0) return;
  shares.set_share(all);
  for_each_segment(plan, cuts, [&](const RowTile& tile) { shares.deal(tile, list.tile_keys, work); });
  shares.finish(work);
}

void count_items(const Plan& plan, const DeviceList& list, const Cuts& cuts, Dealer dealer, ListWork& work) {
  const std::int64_t part_tiles = cuts.part_tiles(), heads = plan.problem.num_kv_heads;
  for (const Request& r : plan.problem.reqs)
    for (std::int64_t i = 0, tiles = cuts.row_tiles(r); i < tiles; ++i) {
      const RowTile tile = cuts.tile(r, i);
      const std::int64_t part = cuts.part_of(tile, part_tiles), skipped = tile.key_begin / list.tile_keys % part;
      std::int64_t parts = 0;
      for (std::int64_t at = 0; at < tile.key_tiles; ++parts) {
        const std::int64_t cut = at == 0 && list.split_keys > 0 ? part - skipped : part,
                           next = std::min(at + cut, tile.key_tiles);
        for (std::int64_t head = 0; head < heads && work.items < kMostTiles; ++head, ++work.items) dealer.deal(next - at);
        at = next;
      }
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
  if (body.deals_itself())
    count_shares(plan, list, cuts, work);
  else
    count_items(plan, list, cuts, Dealer(list.num_blocks / body.blocks_per_unit, costs), work);
  return work.items < kMostTiles;
}

}  // namespace quire::plan_detail
