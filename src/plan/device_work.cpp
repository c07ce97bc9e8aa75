// See device_work.h.
#include "plan/device_work.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "plan/device_lists.h"
#include "semantics/visible_range.h"

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
    const semantics::KeyRange keys = semantics::visible_range(
        r.context_len + begin / p_.group(), r.context_len + (end - 1) / p_.group(), p_.sliding_window.value_or(0));
    const std::int64_t first = keys.begin / list_.tile_keys * list_.tile_keys;
    return {first, (keys.end - first - 1) / list_.tile_keys + 1};
  }
  std::int64_t read_bytes(const Request& r) const {
    const semantics::KeyRange keys = semantics::visible_range(r.context_len, r.seq_len() - 1, p_.sliding_window.value_or(0));
    return 2 * (keys.end - keys.begin) * p_.num_kv_heads * p_.head_dim * itemsize(p_.kv_dtype);
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

/// Equal shares of all tiles, one a block.
void count_shares(const Plan& plan, const DeviceList& list, const Cuts& cuts, ListWork& work) {
  std::int64_t all = 0;
  for (const Request& r : plan.problem.reqs)
    if (cuts.row_tiles(r) > 0) all += cuts.tile(r, 0).key_tiles * plan.problem.num_kv_heads;
  if (all == 0) return;
  const std::int64_t share = (all - 1) / list.num_blocks + 1;
  std::vector<std::int64_t> pieces(static_cast<std::size_t>(list.num_blocks), 0);
  std::int64_t at = 0;
  for (const Request& r : plan.problem.reqs) {
    if (cuts.row_tiles(r) == 0) continue;
    const std::int64_t tiles = cuts.tile(r, 0).key_tiles;
    for (std::int64_t head = 0; head < plan.problem.num_kv_heads; ++head, at += tiles) {
      const std::int64_t first = at / share, last = (at + tiles - 1) / share;
      for (std::int64_t block = first; block <= last; ++block) ++pieces[static_cast<std::size_t>(block)];
      work.items += last - first + 1;
      work.merges += last > first ? 1 : 0;
    }
  }
  work.busiest_tiles = share;
  work.busiest_items = *std::max_element(pieces.begin(), pieces.end());
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

Body body_of(const Plan& plan, const DeviceList& list) {
  if (plan.kernel == "cuda_generic") return Body::generic;
  const Body of_mma = list.tile_rows == kShortTileRows ? Body::mma_short : Body::mma_tall;
  if (plan.kernel == "cuda_mma") return of_mma;
  if (list.rounded_weights) return Body::sm90_prefill;
  const bool decode = list.max_rows == list.tile_rows;  // a request is one tile
  if (!decode || plan.bounds.num_reqs > kSm90MostReqs) return of_mma;
  return list.tile_rows == kShortTileRows ? Body::sm90_decode : Body::sm90_wide;
}

bool runs_at_the_same_time(const Plan& plan) {
  if (plan.kernel != "cuda_sm90" || plan.lists.size() != 2 || !plan.lists[1].beside) return false;
  const Body first = body_of(plan, plan.lists[0]), second = body_of(plan, plan.lists[1]);
  return (first == Body::sm90_decode || first == Body::sm90_wide) && second == Body::sm90_prefill;
}

std::int64_t units_of(Body body, const DeviceList& list) {
  return body == Body::sm90_prefill ? list.num_blocks / 2 : list.num_blocks;
}

bool count_work(const Plan& plan, const DeviceList& list, Body body, const ItemCosts& costs, ListWork& work) {
  const Cuts cuts(plan, list);
  std::int64_t row_tiles = 0;
  for (const Request& r : plan.problem.reqs) {
    const std::int64_t tiles = cuts.row_tiles(r);
    row_tiles += std::min(tiles, kMostTiles);
    if (tiles > 0) work.read_bytes += static_cast<double>(cuts.read_bytes(r));
  }
  if (row_tiles * plan.problem.num_kv_heads > kMostTiles) return false;
  if (body == Body::sm90_decode || body == Body::sm90_wide)
    count_shares(plan, list, cuts, work);
  else
    count_items(plan, list, cuts, Dealer(units_of(body, list), costs), work);
  return work.items < kMostTiles;
}

}  // namespace quire::plan_detail
