// SPDX-License-Identifier: Apache-2.0
// Who was read, as the census says, as a model: a rule over page ids, columns read from other pages, positions left out or read
// again. The census is of a few rows; the evidence says whether the others read likewise.
#include <algorithm>
#include <map>

#include "diagnose/census_changes.h"
#include "diagnose/mechanisms/mechanism.h"
#include "diagnose/pairs.h"
#include "text/formatted.h"
#include "text/runs.h"

namespace quire::diagnose_detail {
namespace {

const char* const kNextCensus =
    "the counts of keys are solved from the output, not guessed: compare block_table, lengths and loop bounds at the call with "
    "them";

using ColumnMap = std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t>;  // (request, column) -> page that was read
using Reads = std::map<std::int64_t, double>;                                     // position -> weight in place of 1, or of 0

void propose_columns(const Scene& scene, const std::vector<CensusChanges>& changes, Proposals& list) {
  ColumnMap map;
  std::string detail;
  constexpr std::size_t kListed = 4;
  for (std::size_t i = 0; i < changes.size(); ++i)
    for (const CensusChanges::Column& c : changes[i].columns) {
      const std::int64_t request = scene.census[i].request;
      if (map.size() < kListed)
        detail += formatted("{}column {} of request {} from page {} instead of {}", map.empty() ? "" : ", ", c.column, request,
                            c.read, c.page);
      map[{request, c.column}] = c.read;
    }
  if (map.size() < 2) return;  // propose_page() searches for one
  if (map.size() > kListed) detail += ", and so on";
  list.push_back({"page", "reads K and V of some pages from other pages", detail, kNextCensus, 1,
                  cached_place_changed([map](const Model& m, const Row& row, Side, std::int64_t position, Place& place) {
                    const auto found = map.find({row.req, position / m.facts->page_size});
                    if (found != map.end()) place.page = found->second;
                  })});
}

/// Keys with other weights: positions that a row sees get `reads`, and those that it does not see are added.
Plant weights_changed(std::function<Reads(const Row&)> reads_of) {
  return keys_changed([reads_of = std::move(reads_of)](const Row& row, std::vector<Key>& keys) {
    Reads reads = reads_of(row);
    for (Key& key : keys)
      if (const auto found = reads.find(key.position); found != reads.end()) {
        key.weight = found->second;
        reads.erase(found);
      }
    std::erase_if(keys, [](const Key& key) { return key.weight == 0; });
    for (const auto& [position, weight] : reads)
      if (weight > 0) keys.push_back({position, weight});
    std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.position < b.position; });
  });
}

/// Weights by position, counted from `origin`.
Reads reads_of(const CensusChanges& changes, std::int64_t origin) {
  Reads reads;
  for (const std::int64_t k : changes.left_out) reads[k - origin] = 0;
  for (const CensusChanges::Again& a : changes.again) reads[a.position - origin] = a.times + (a.seen ? 1 : 0);
  return reads;
}

std::string words_of(const Reads& reads) {
  std::vector<std::int64_t> out, again;
  for (const auto& [k, weight] : reads) (weight == 0 ? out : again).push_back(k);
  std::string text = out.empty() ? "" : runs(out) + " left out";
  return again.empty() ? text : text + (text.empty() ? "" : ", ") + runs(again) + " read, or read again";
}

/// Whether key_range or key_group proposes the same: one key or nothing, or whole pages.
bool is_said_elsewhere(const Facts& f, const CensusChanges& changes) {
  constexpr std::size_t kFew = 3;  // keys at an end of the range
  return changes.left_out.size() + changes.again.size() < kFew || changes.left_out.size() % Facts::at(f.page_size) == 0;
}

/// The same positions in every request, or the same distances to the row's own position.
void propose_positions(const Scene& scene, const std::vector<CensusChanges>& changes, Proposals& list) {
  const Model truth(scene.facts);
  std::vector<Reads> fixed, relative;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (is_said_elsewhere(scene.facts, changes[i])) return;
    fixed.push_back(reads_of(changes[i], 0));
    relative.push_back(reads_of(changes[i], truth.row(scene.census[i].token, 0).q_pos));
  }
  const auto all_same_reads = [](const std::vector<Reads>& reads) {
    return std::ranges::all_of(reads, [&](const Reads& r) { return r == reads.front(); });
  };
  const auto add = [&](std::string detail, std::function<Reads(const Row&)> of_row) {
    list.push_back({"key_range", "reads some keys more or less often", std::move(detail), kNextCensus, 1,
                    weights_changed(std::move(of_row))});
  };
  if (all_same_reads(fixed)) add("positions " + words_of(fixed.front()), [r = fixed.front()](const Row&) { return r; });
  if (all_same_reads(relative))
    add("counted from the row's own position, " + words_of(relative.front()), [r = relative.front()](const Row& row) {
      Reads moved;
      for (const auto& [k, weight] : r)
        if (k + row.q_pos >= 0 && k + row.q_pos < row.seq_len) moved[k + row.q_pos] = weight;
      return moved;
    });
  std::map<std::int64_t, Reads> by_request;
  for (std::size_t i = 0; i < changes.size(); ++i) by_request[scene.census[i].request] = fixed[i];
  add(formatted("request {}: positions {}{}", by_request.begin()->first, words_of(by_request.begin()->second),
                by_request.size() > 1 ? ", and so on" : ""),
      [by_request](const Row& row) {
        const auto found = by_request.find(row.req);
        return found == by_request.end() ? Reads{} : found->second;
      });
}

}  // namespace

void propose_pairs(const Scene& scene, Proposals& list) {
  for (const Sides sides : kSideSets) {
    const std::vector<RowCensus> rows = rows_of({scene.pairs.begin(), scene.pairs.end()}, sides);
    if (sides.both() || rows.empty()) continue;
    PairRule rule = pair_rule(scene.facts, rows);
    if (!rule.change) continue;
    list.push_back({"page", formatted("reads {} from other slots than {}", sides.text(), sides.key ? "V" : "K"), rule.text,
                    kNextPage, 2,
                    cached_place_changed([sides, change = std::move(rule.change)](const Model& m, const Row& row, Side side,
                                                                                  std::int64_t position, Place& place) {
                      if (sides.has(side)) change(*m.facts, row, position, place);
                    })});
  }
}

void propose_census(const Scene& scene, Proposals& list) {
  if (scene.census.empty()) return;
  std::vector<CensusChanges> changes;
  for (const RowCensus& census : scene.census) changes.push_back(changes_of(scene.facts, census));
  const std::optional<PageIdRule> rule = page_id_rule(scene.facts, {scene.census.begin(), scene.census.end()});
  if (rule)
    list.push_back({"page", "reads K and V from another page or slot", rule->text, kNextCensus, 0,
                    cached_place_changed([map = rule->map](const Model&, const Row&, Side, std::int64_t, Place& place) {
                      place.page = map(place.page);
                    })});
  if (!rule) propose_columns(scene, changes, list);
  propose_positions(scene, changes, list);
}

}  // namespace quire::diagnose_detail
