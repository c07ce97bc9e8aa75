// SPDX-License-Identifier: Apache-2.0
// Another request's row of block_table, with the own length. Every request is tried on the cheapest wrong cell of each request.
#include <algorithm>
#include <map>
#include <set>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::int64_t kMostKeysTableRow = 2048;
constexpr std::size_t kMostRequests = 24;
const char* const kNextTableRow = "look at the request index with which the kernel reads block_table";

using Map = std::map<std::int64_t, std::int64_t>;  // request -> row of block_table

/// Treatment of an entry past the other request's pages, which names no page: the kernel reads page 0, or counts from the end
/// like a Python index.
enum class Outside { first_page, from_the_end };

/// `row` gives the request whose pages are read, -1 for the own one.
Plant rows_read(Sides sides, Outside outside, std::function<std::int64_t(std::int64_t req)> row) {
  return cached_place_changed([=](const Model& model, const Row& r, Side side, std::int64_t k, Place& place) {
    const std::int64_t other = sides.has(side) ? row(r.req) : -1, pages = model.facts->num_pages;
    if (other < 0) return;
    place.page = model.table(other, k / model.facts->page_size);
    if (place.page < 0 || place.page >= pages)
      place.page = outside == Outside::first_page ? 0 : (place.page % pages + pages) % pages;
  });
}

std::map<std::int64_t, OpenCell> cheapest_by_request(const Scene& scene) {
  std::map<std::int64_t, const Compared*> chosen;
  const auto keys = [&](const Compared* c) { return scene.where.reference.num_keys[Facts::at(c->reference_row)]; };
  for (const Compared* cell : scene.wrong) {
    if (cell->wrong_dims == 0 || cell->nonfinite > 0 || keys(cell) > kMostKeysTableRow) continue;
    const Compared*& own = chosen[scene.facts.req_of(cell->token)];
    if (own == nullptr || keys(cell) < keys(own)) own = cell;
  }
  std::map<std::int64_t, OpenCell> open;
  for (const auto& [req, cell] : chosen)
    if (open.size() < kMostRequests)
      open.emplace(req, open_cell(scene.facts, scene.observed, scene.where, *cell, kMostKeysTableRow));
  return open;
}

std::int64_t row_read(const Facts& f, const OpenCell& cell, Sides sides, Outside outside) {
  std::int64_t best = -1;
  double least = cell.error();
  for (std::int64_t r = 0; r < f.num_reqs; ++r) {
    if (r == cell.row.req) continue;
    Model m(f);
    rows_read(sides, outside, [r](std::int64_t) { return r; })(m);
    const double left = cell.distance(evaluate(m, std::span<const RowHead>(&cell.at, 1))[0].out);
    if (left < least && cell.explained_by(left)) least = left, best = r;
  }
  return best;
}

std::string rule_of_table_row(const Facts& f, const Map& map) {
  const std::int64_t one = map.begin()->second, by = one - map.begin()->first;
  const auto all = [&](auto&& rule) {
    return std::all_of(map.begin(), map.end(), [&](const auto& e) { return rule(e.first) == e.second; });
  };
  if (all([&](std::int64_t) { return one; })) return formatted("row {} of block_table is read", one);
  if (all([&](std::int64_t r) { return (r + by + f.num_reqs) % f.num_reqs; }))
    return formatted("request r reads row r {:+} of block_table", by);
  return formatted("request {} reads row {} of block_table, and so on", map.begin()->first, one);
}

void propose_rows(const Scene& scene, const std::map<std::int64_t, OpenCell>& cells, Sides sides, Outside outside,
                  Proposals& list) {
  Map map;
  for (const auto& [req, cell] : cells) {
    const std::int64_t read = row_read(scene.facts, cell, sides, outside);
    if (read >= 0) map[req] = read;
    if (read < 0 && map.empty()) break;
  }
  if (map.empty() || map.size() * 10 < cells.size() * 9) return;
  // A request whose cells were not looked at reads what the rule of the others says: the same row, or the same distance.
  const std::int64_t one = map.begin()->second, by = one - map.begin()->first, n = scene.facts.num_reqs;
  const bool same_row = std::all_of(map.begin(), map.end(), [&](const auto& e) { return e.second == one; });
  const auto row = [=](std::int64_t req) {
    const auto read = map.find(req);
    return read != map.end() ? read->second : same_row ? one : (req + by + n) % n;
  };
  list.push_back({"table_row", formatted("reads {} by another request's row of block_table", sides.text()),
                  rule_of_table_row(scene.facts, map), kNextTableRow, 1, rows_read(sides, outside, row)});
}

/// Rules that need no inversion: entries past the other request's pages may give NaN, which inverts to nothing.
void propose_always(const Facts& f, Outside outside, Proposals& list) {
  constexpr std::int64_t kMostRows = 32;
  const auto add = [&](std::string detail, std::function<std::int64_t(std::int64_t)> row) {
    list.push_back({"table_row", "reads K and V by another request's row of block_table", std::move(detail), kNextTableRow, 1,
                    rows_read(kSideSets[0], outside, std::move(row))});
  };
  for (std::int64_t r = 0; r < std::min(f.num_reqs, kMostRows); ++r)
    add(formatted("row {} of block_table is read", r), [r](std::int64_t) { return r; });
  for (const std::int64_t by : {-1, 1})
    add(formatted("request r reads row r {:+} of block_table", by),
        [by, n = f.num_reqs](std::int64_t r) { return (r + by + n) % n; });
}

/// Proposes block_table flattened with another number of columns. Memory after its last entry is unknown, and an entry of no
/// request may name no page: the own entry is kept, or page 0 is read.
void propose_widths(const Scene& scene, Proposals& list) {
  const Facts* f = &scene.facts;
  std::set<std::int64_t> widths{8, 16, 32, 40, 64, 96, 128, 192, 256};
  for (const std::int64_t by : {1, 2}) widths.insert({f->max_pages_per_req - by, f->max_pages_per_req + by});
  std::int64_t longest = 0;
  for (const std::int64_t n : f->seq_lens) longest = std::max(longest, n);
  widths.insert((longest + f->page_size - 1) / f->page_size);
  for (const std::int64_t width : widths)
    for (const bool keeps_own : {true, false})
      for (const Sides sides : kSideSets) {
        if (width <= 0 || width == f->max_pages_per_req) continue;
        const auto by_width = [=](const Model& model, const Row& r, Side side, std::int64_t k, Place& place) {
          if (!sides.has(side)) return;
          const std::int64_t flat = r.req * width + k / f->page_size;
          const bool inside = flat < f->num_reqs * f->max_pages_per_req;
          const std::int64_t page =
              inside ? model.table(flat / f->max_pages_per_req, flat % f->max_pages_per_req) : Facts::kNotAPage;
          place.page = page >= 0 && page < f->num_pages ? page : keeps_own ? place.page : 0;
        };
        list.push_back({"table_row", formatted("reads {} by block_table with another number of columns", sides.text()),
                        formatted("{} columns in place of {}", width, f->max_pages_per_req),
                        "pass the row stride of block_table as it was allocated", 1, cached_place_changed(by_width)});
      }
}

}  // namespace

void propose_table_row(const Scene& scene, Proposals& list) {
  if (scene.facts.num_reqs < 2) return;
  if (std::any_of(scene.wrong.begin(), scene.wrong.end(), [](const Compared* c) { return c->nonfinite > 0; }))
    for (const Outside outside : {Outside::first_page, Outside::from_the_end}) propose_always(scene.facts, outside, list);
  propose_widths(scene, list);
  const std::map<std::int64_t, OpenCell> cells = cheapest_by_request(scene);
  for (const Sides sides : kSideSets)
    for (const Outside outside : {Outside::first_page, Outside::from_the_end}) propose_rows(scene, cells, sides, outside, list);
}

}  // namespace quire::diagnose_detail
