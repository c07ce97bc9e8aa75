// SPDX-License-Identifier: Apache-2.0
// Longest processing time first (Graham 1969): the least loaded thread takes the heaviest item left. With items in falling order
// no thread ends later than the mean plus the item that it took last, so only items heavier than a part of the mean need care.
#include "plan/cost.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace quire::plan_detail {
namespace {

// An item below this share of a thread's mean load cannot unbalance a list by more than the share.
constexpr double kLightShare = 1.0 / 8;
// Heavy tiles stay whole while the busiest thread stays within this: an unsplit item prefetches across segments and needs no
// merge.
constexpr double kEvenEnough = 17.0 / 16;

// Items of one cost, for each thread, up to which they are taken one by one: more are counted, which is rounded differently.
constexpr std::int64_t kFewItems = 64;

/// The loads of all threads as a heap, the least loaded on top.
class Loads {
 public:
  explicit Loads(int num_threads) : loads_(static_cast<std::size_t>(num_threads)) {}

  /// The least loaded thread takes an item; returns its load afterwards.
  double take(double cost) {
    std::pop_heap(loads_.begin(), loads_.end(), std::greater<>());
    const double load = loads_.back() += cost;
    std::push_heap(loads_.begin(), loads_.end(), std::greater<>());
    busiest_ = std::max(busiest_, load);
    total_ += cost;
    return load;
  }
  /// Gives the threads `count` items of one cost, as if items were taken one by one. Item k of a thread would begin when the
  /// thread has its load and k items; the `count` items that begin first are taken. The level is the time before which at most
  /// `count` items begin.
  void take(double cost, std::int64_t count) {
    const auto begun = [&](double level) {
      double sum = 0;
      for (const double load : loads_) sum += std::max(0.0, std::ceil((level - load) / cost));
      return sum;
    };
    constexpr int kSteps = 60;  // halvings: more than the bits of a double add nothing
    double low = loads_.front(), high = low + cost * static_cast<double>(count);
    const bool many = cost > 0 && count > kFewItems * static_cast<std::int64_t>(loads_.size());
    for (int i = 0; many && i < kSteps; ++i) {
      const double middle = low + (high - low) / 2;
      (begun(middle) <= static_cast<double>(count) ? low : high) = middle;
    }
    for (double& load : loads_) {
      const double own = many ? std::max(0.0, std::ceil((low - load) / cost)) : 0;
      load += own * cost;
      total_ += own * cost;
      busiest_ = own > 0 ? std::max(busiest_, load) : busiest_;
      count -= static_cast<std::int64_t>(own);
    }
    std::make_heap(loads_.begin(), loads_.end(), std::greater<>());
    for (; count > 0; --count) take(cost);
  }
  double busiest() const { return busiest_; }
  double mean() const { return total_ / static_cast<double>(loads_.size()); }

 private:
  std::vector<double> loads_;
  double busiest_ = 0, total_ = 0;
};

struct Heavy {
  double cost;
  std::size_t tile;
};

std::vector<Heavy> heavy_tiles(const std::vector<WorkTile>& tiles, const Plan& plan, const CostModel& cost, double limit) {
  std::vector<Heavy> heavy;
  for (std::size_t i = 0; i < tiles.size(); ++i)
    if (const double c = item_cost(cost, tiles[i], plan.split_keys); c > limit) heavy.push_back({c, i});
  std::sort(heavy.begin(), heavy.end(), [](const Heavy& a, const Heavy& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.tile < b.tile;  // a total order: equal inputs give equal plans
  });
  return heavy;
}

}  // namespace

std::int64_t segments_of(const WorkTile& tile, std::int64_t split_keys) {
  if (tile.key_begin >= tile.key_end) return 1;  // rows that see no key are written all the same
  return (tile.key_end - 1) / split_keys - tile.key_begin / split_keys + 1;
}

double item_cost(const CostModel& cost, const WorkTile& tile, std::int64_t split_keys) {
  const std::int64_t keys = tile.key_end - tile.key_begin;
  return cost(tile.row_end - tile.row_begin, tile.num_parts == 1 ? keys : std::min(keys, split_keys));
}

void choose_splits(std::vector<WorkTile>& tiles, const Plan& plan, const CostModel& cost, double total) {
  if (plan.num_threads == 1) return;
  const auto num_kv_heads = plan.problem.num_kv_heads;
  const double mean = total * static_cast<double>(num_kv_heads) / plan.num_threads;
  Loads loads(plan.num_threads);
  for (const Heavy& h : heavy_tiles(tiles, plan, cost, mean * kLightShare)) {
    WorkTile& tile = tiles[h.tile];
    const Loads before = loads;
    double most = 0;
    for (std::int64_t head = 0; head < num_kv_heads; ++head) most = std::max(most, loads.take(h.cost));
    const std::int64_t segments = segments_of(tile, plan.split_keys);
    if (most <= mean * kEvenEnough || segments == 1) continue;
    tile.num_parts = static_cast<std::int32_t>(segments);
    loads = before;  // segments of the cut tile are light and fill what is left
  }
}

}  // namespace quire::plan_detail

namespace quire {

double load_imbalance(const Plan& plan) {
  const plan_detail::CostModel cost(plan.problem);
  plan_detail::Loads loads(plan.num_threads);
  const std::int64_t heads = plan.problem.num_kv_heads;  // items of a tile and segment, which differ in nothing else
  for (std::int64_t i = 0; i < plan.num_items(); i += heads) {
    const plan_detail::WorkItem item = plan_detail::item_of(plan, i);
    loads.take(cost(item.row_end - item.row_begin, item.key_end - item.key_begin), heads);
  }
  return plan.num_items() == 0 ? 1.0 : loads.busiest() / loads.mean();
}

}  // namespace quire
