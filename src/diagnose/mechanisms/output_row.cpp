// SPDX-License-Identifier: Apache-2.0
// A wrong cell that holds another cell's right answer: rows or heads are stored in another order. Every wrong cell is looked up
// among all expected ones by one projection, so any permutation is found, not only known ones.
#include <algorithm>
#include <cmath>
#include <map>

#include "diagnose/axis_order.h"
#include "diagnose/cell_directory.h"
#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kNearlyAll = 0.95;        // share of the wrong cells that must hold another cell's answer
constexpr std::size_t kCellsTried = 2000;  // wrong cells from which a rule is derived; the rule is tested on all

using RowHeadMap = std::map<std::pair<std::int64_t, std::int64_t>, RowHead>;

/// "head h holds head h + 1", "row t holds row t - 3": the rule that all entries follow, if there is one.
std::string rule_of(const Facts& f, const RowHeadMap& map) {
  const auto all = [&](auto&& holds) {
    return std::all_of(map.begin(), map.end(),
                       [&](const auto& entry) { return holds(entry.first.first, entry.first.second, entry.second); });
  };
  const auto& [first, to] = *map.begin();
  const std::int64_t by_row = to.token - first.first, by_head = to.head - first.second, x = to.head ^ first.second;
  using N = std::int64_t;
  const bool own_row = all([](N t, N, const RowHead& r) { return r.token == t; });
  const bool own_head = all([](N, N h, const RowHead& r) { return r.head == h; });
  if (own_row && all([&](N, N h, const RowHead& r) { return (r.head ^ h) == x; }))
    return formatted("head h holds head h ^ {}", x);
  if (own_row && all([&](N, N h, const RowHead& r) { return r.head - h == by_head; }))
    return formatted("head h holds head h {:+}", by_head);
  if (own_row && all([&](N, N, const RowHead& r) { return r.head == to.head; }))
    return formatted("every head holds head {}", to.head);
  if (own_head && all([&](N t, N, const RowHead& r) { return r.token - t == by_row; }))
    return formatted("row t holds row t {:+}", by_row);
  if (own_head && all([&](N, N, const RowHead& r) { return r.token == to.token; }))
    return formatted("every row holds row {}", to.token);
  for (const AxisOrder& order : axis_orders())
    if (all([&](N t, N h, const RowHead& r) {
          const RowHead place = order.place(f, r);
          return place.token == t && place.head == h;
        }))
      return order.text();
  return formatted("row {}, head {} holds row {}, head {}, and so on", first.first, first.second, to.token, to.head);
}

/// The sum of the right answer and of what the output held before the call.
void propose_sum(Proposals& list) {
  list.push_back({"output_row", "adds its output to what the buffer held", "",
                  "clear the output before a kernel that adds to it, or store with beta = 0", 0, [](Model& m) {
                    m.finish = [f = m.facts, before = m.finish](const Row& row, RowResult& result) {
                      before(row, result);
                      const Observed held{f->batch.output, f->batch.lse};
                      for (std::size_t d = 0; d < result.out.size(); ++d)
                        result.out[d] += held.at(row.token, row.head, static_cast<std::int64_t>(d));
                    };
                  }});
}

}  // namespace

void propose_output_row(const Scene& scene, Proposals& list) {
  propose_sum(list);
  const CellDirectory directory(scene.facts, scene.observed, scene.where);
  RowHeadMap map;
  std::size_t tried = 0;
  const std::size_t step = scene.wrong.size() / kCellsTried + 1;
  for (std::size_t i = 0; i < scene.wrong.size(); i += step) {
    const Compared& cell = *scene.wrong[i];
    const Compared* holder = directory.holder(cell);
    ++tried;
    if (holder != nullptr) map[{cell.token, cell.head}] = {holder->token, holder->head};
    if (tried == 8 && map.empty()) return;
  }
  if (map.empty() || static_cast<double>(map.size()) < kNearlyAll * static_cast<double>(tried)) return;
  for (const Compared* cell : scene.wrong)
    if (step > 1 && !map.contains({cell->token, cell->head}))
      if (const Compared* holder = directory.holder(*cell); holder != nullptr)
        map[{cell->token, cell->head}] = {holder->token, holder->head};
  list.push_back({"output_row", "stores the right answer of another row or head", rule_of(scene.facts, map),
                  "look at the row and head index of the store, and at the order in which requests are put back", 1,
                  function_changed(&Model::row, [map](const auto& before, std::int64_t token, std::int64_t head) {
                    const auto other = map.find({token, head});
                    if (other == map.end()) return before(token, head);
                    Row row = before(other->second.token, other->second.head);
                    row.token = token;
                    row.head = head;
                    return row;
                  })});
}

}  // namespace quire::diagnose_detail
