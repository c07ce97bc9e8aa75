// SPDX-License-Identifier: Apache-2.0
// Another KV head. For the cheapest wrong cell of each query head every KV head is tried, for K, for V and for both; the map that
// comes out is put into words afterwards.
#include <algorithm>
#include <iterator>
#include <map>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::int64_t kMostKeys = 2048;
constexpr std::size_t kMostHeads = 64;

using Map = std::map<std::int64_t, std::int64_t>;  // query head -> KV head

Model with_head(const Facts& f, Sides sides, std::int64_t kv_head) {
  Model m(f);
  m.kv_head = [sides, kv_head, before = m.kv_head](const Row& r, Side side) {
    return sides.has(side) ? kv_head : before(r, side);
  };
  return m;
}

/// The cheapest wrong cell of each of the first kMostHeads query heads that have one.
std::map<std::int64_t, const Compared*> cheapest_by_head(const Scene& scene) {
  std::map<std::int64_t, const Compared*> chosen;
  const auto keys = [&](const Compared* c) { return scene.where.reference.num_keys[Facts::at(c->reference_row)]; };
  for (const Compared* cell : scene.wrong) {
    if (cell->wrong_dims == 0 || cell->nonfinite > 0 || keys(cell) > kMostKeys) continue;
    const Compared*& own = chosen[cell->head];
    if (own == nullptr || (keys(cell) > 1 && keys(cell) < keys(own))) own = cell;
  }
  while (chosen.size() > kMostHeads) chosen.erase(std::prev(chosen.end()));
  return chosen;
}

/// The KV head that explains the cell best; -1 if none explains it.
std::int64_t head_read(const Facts& f, const OpenCell& cell, Sides sides) {
  std::int64_t best = -1;
  double least = cell.error();
  for (std::int64_t g = 0; g < f.num_kv_heads; ++g) {
    if (g == cell.at.head / f.group) continue;
    const double left = cell.distance(evaluate(with_head(f, sides, g), std::span<const RowHead>(&cell.at, 1))[0].out);
    if (left < least && cell.explained_by(left)) least = left, best = g;
  }
  return best;
}

std::string rule_of(const Facts& f, const Map& map) {
  const std::int64_t n = f.num_kv_heads, group = f.group;
  const auto all = [&](auto&& rule) {
    return std::all_of(map.begin(), map.end(), [&](const auto& e) { return rule(e.first) == e.second; });
  };
  using N = std::int64_t;
  if (all([&](N h) { return h % n; })) return "query head h reads KV head h % num_kv_heads";
  if (all([&](N h) { return n - 1 - h / group; })) return "KV heads are read in reverse order";
  const std::int64_t by = ((map.begin()->second - map.begin()->first / group) % n + n) % n, one = map.begin()->second;
  if (all([&](N) { return one; })) return formatted("every query head reads KV head {}", one);
  if (all([&](N h) { return (h / group + by) % n; })) return formatted("KV head g + {} is read in place of g", by);
  for (N size = 1; size <= f.num_q_heads; ++size)
    if (size != group && all([&](N h) { return std::min(n - 1, h / size); }))
      return formatted("groups of {} instead of {}", size, group);
  return formatted("query head {} reads KV head {}, and so on", map.begin()->first, one);
}

}  // namespace

void propose_kv_head(const Scene& scene, Proposals& list) {
  if (scene.facts.num_kv_heads < 2) return;
  const std::map<std::int64_t, const Compared*> cells = cheapest_by_head(scene);
  // A cell is opened when it is asked about: the first head refutes most batches.
  std::map<std::int64_t, OpenCell> open;
  for (const Sides sides : kSideSets) {
    Map map;
    for (const auto& [head, cell] : cells) {
      if (!open.contains(head)) open.emplace(head, open_cell(scene.facts, scene.observed, scene.where, *cell, kMostKeys));
      const std::int64_t read = head_read(scene.facts, open.at(head), sides);
      if (read >= 0) map[head] = read;
      if (read < 0 && map.empty()) break;
    }
    if (map.size() * 10 < cells.size() * 9 || map.empty()) continue;
    list.push_back({"kv_head", formatted("reads {} of another KV head", sides.text()), rule_of(scene.facts, map),
                    "query head h reads KV head h / (num_q_heads / num_kv_heads)", 1,
                    function_changed(&Model::kv_head, [map, sides](const auto& before, const Row& r, Side side) {
                      const auto read = map.find(r.query_head);
                      return sides.has(side) && read != map.end() ? read->second : before(r, side);
                    })});
  }
}

}  // namespace quire::diagnose_detail
