// SPDX-License-Identifier: Apache-2.0
// Own keys, another query: of another row or head. Every row and head is tried on one opened cell, at the cost of its dot
// products.
#include <algorithm>
#include <set>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kCellsTriedQueryRow = 2;
constexpr double kMostProductsQueryRow = 2e8;  // multiply-adds of one search: about 0.1 s

struct Query {
  std::int64_t token = 0, head = 0;
};

/// Queries that a kernel could have loaded for this cell: any row with its own head, any head of its own row.
std::vector<Query> queries(const Scene& scene, const OpenCell& cell) {
  const Facts& f = scene.facts;
  const double cost = static_cast<double>(cell.to - cell.from) * static_cast<double>(f.head_dim) * 2;
  const auto affordable = static_cast<std::int64_t>(kMostProductsQueryRow / cost);
  std::vector<Query> list;
  for (std::int64_t h = 0; h < f.num_q_heads; ++h)
    if (h != cell.at.head) list.push_back({cell.at.token, h});
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    if (f.query_len(r) > 0)
      for (const std::int64_t token : {f.query_start_loc[Facts::at(r)], f.query_start_loc[Facts::at(r + 1)] - 1})
        list.push_back({token, cell.at.head});
  for (std::int64_t by = 1; by < f.num_tokens && static_cast<std::int64_t>(list.size()) < affordable; ++by)
    for (const std::int64_t token : {cell.at.token - by, cell.at.token + by})
      if (token >= 0 && token < f.num_tokens) list.push_back({token, cell.at.head});
  return list;
}

Plant query_read(std::function<Query(const Row&)> of) {
  return function_changed(&Model::query, [of = std::move(of)](const auto& before, const Row& row, std::int64_t d) {
    const Query query = of(row);
    Row other = row;
    other.query_token = query.token;
    other.query_head = query.head;
    return before(other, d);
  });
}

/// A rule for the query's row or head that one found query suggests.
struct QueryRowRule {
  std::string text;
  std::function<Query(const Facts&, const Row&)> query;
};

/// Rules by the row's index in its request: tiles, rows exchanged, requests padded to one length.
void add_tile_rules(const OpenCell& cell, Query found, std::vector<QueryRowRule>& rules) {
  const std::int64_t first = cell.row.first_token;
  const std::int64_t index = cell.at.token - first, other = found.token - first;
  for (std::int64_t tile = 2; tile <= 128; tile *= 2)
    if (other == index / tile * tile)
      rules.push_back({formatted("rows read the first query of their tile of {}", tile), [tile](const Facts&, const Row& r) {
                         return Query{r.first_token + (r.token - r.first_token) / tile * tile, r.head};
                       }});
  for (std::int64_t tile = 8; tile <= 256; tile *= 2) {
    if (found.token == cell.at.token % tile)
      rules.push_back({formatted("row t reads the query of row t mod {}", tile),
                       [tile](const Facts&, const Row& r) { return Query{r.token % tile, r.head}; }});
    if (other == index % tile)
      rules.push_back(
          {formatted("row i of a request reads the query of its row i mod {}", tile),
           [tile](const Facts&, const Row& r) { return Query{r.first_token + (r.token - r.first_token) % tile, r.head}; }});
  }
  if (const std::int64_t x = other ^ index; other >= 0 && (x & (x - 1)) == 0)
    rules.push_back({formatted("row i of a request reads the query of its row i ^ {}", x), [x](const Facts&, const Row& r) {
                       const std::int64_t i = (r.token - r.first_token) ^ x;
                       return Query{i < r.query_len ? r.first_token + i : r.token, r.head};
                     }});
  const std::int64_t rows = cell.row.req > 0 ? (found.token - index) / cell.row.req : 0;
  if (rows > 0 && found.token == cell.row.req * rows + index)
    rules.push_back({formatted("row i of request r reads the query of row {} r + i, as if the batch were padded", rows),
                     [rows](const Facts& facts, const Row& r) {
                       return Query{std::min(facts.num_tokens - 1, r.req * rows + r.token - r.first_token), r.head};
                     }});
}

std::vector<QueryRowRule> row_rules(const Facts& f, const OpenCell& cell, Query found) {
  std::vector<QueryRowRule> rules;
  const std::int64_t by = found.token - cell.at.token, first = cell.row.first_token, last = first + cell.row.query_len - 1;
  const auto inside = [](const Facts& facts, std::int64_t token) {
    return std::clamp<std::int64_t>(token, 0, facts.num_tokens - 1);
  };
  rules.push_back({formatted("row t reads the query of row t {:+}", by),
                   [by, inside](const Facts& facts, const Row& r) { return Query{inside(facts, r.token + by), r.head}; }});
  rules.push_back({formatted("row t reads the query of row t {:+}, within its request", by), [by](const Facts&, const Row& r) {
                     return Query{std::clamp(r.token + by, r.first_token, r.first_token + r.query_len - 1), r.head};
                   }});
  rules.push_back({formatted("every row reads the query of row {}", found.token),
                   [t = found.token](const Facts&, const Row& r) { return Query{t, r.head}; }});
  if (found.token == first)
    rules.push_back({"every row reads the first query of its request",
                     [](const Facts&, const Row& r) { return Query{r.first_token, r.head}; }});
  if (found.token == last)
    rules.push_back({"every row reads the last query of its request",
                     [](const Facts&, const Row& r) { return Query{r.first_token + r.query_len - 1, r.head}; }});
  if (found.token == first + last - cell.at.token)
    rules.push_back({"rows of a request read its queries in reverse order",
                     [](const Facts&, const Row& r) { return Query{2 * r.first_token + r.query_len - 1 - r.token, r.head}; }});
  add_tile_rules(cell, found, rules);
  if (found.token == cell.row.req)
    rules.push_back({"request r reads the query of row r", [](const Facts&, const Row& r) { return Query{r.req, r.head}; }});
  for (const std::int64_t shift : {-1, 1}) {
    const std::int64_t req = cell.row.req + shift;
    if (req < 0 || req >= f.num_reqs || f.query_len(req) == 0 ||
        found.token != f.query_start_loc[Facts::at(req)] + cell.at.token - first)
      continue;
    rules.push_back(
        {formatted("requests read the query of request r {:+}", shift), [shift, inside](const Facts& facts, const Row& r) {
           const std::int64_t other = std::clamp<std::int64_t>(r.req + shift, 0, facts.num_reqs - 1);
           return Query{inside(facts, facts.query_start_loc[Facts::at(other)] + r.token - r.first_token), r.head};
         }});
  }
  return rules;
}

std::vector<QueryRowRule> head_rules(const Facts& f, const OpenCell& cell, Query found) {
  std::vector<QueryRowRule> rules;
  const std::int64_t by = found.head - cell.at.head, heads = f.num_q_heads, x = found.head ^ cell.at.head, group = f.group;
  rules.push_back({formatted("head h reads the query of head h {:+}", by),
                   [by, heads](const Facts&, const Row& r) { return Query{r.token, (r.head + by + heads) % heads}; }});
  if (by < 0)
    rules.push_back({formatted("head h reads the query of head h {:+}", by + heads),
                     [by, heads](const Facts&, const Row& r) { return Query{r.token, (r.head + by + 2 * heads) % heads}; }});
  rules.push_back({formatted("head h reads the query of head h ^ {}", x),
                   [x, heads](const Facts&, const Row& r) { return Query{r.token, std::min(heads - 1, r.head ^ x)}; }});
  rules.push_back({formatted("every head reads the query of head {}", found.head),
                   [h = found.head](const Facts&, const Row& r) { return Query{r.token, h}; }});
  if (found.head == cell.at.head / group * group)
    rules.push_back({"every head reads the query of the first head of its group",
                     [group](const Facts&, const Row& r) { return Query{r.token, r.head / group * group}; }});
  for (const std::int64_t inner : {group, heads / group}) {
    const auto transposed = [inner, outer = heads / inner](std::int64_t h) { return h % inner * outer + h / inner; };
    if (found.head == transposed(cell.at.head))
      rules.push_back({formatted("heads of [{}, {}] are read as [{}, {}]", inner, heads / inner, heads / inner, inner),
                       [transposed](const Facts&, const Row& r) { return Query{r.token, transposed(r.head)}; }});
  }
  if (found.head == heads - 1 - cell.at.head)
    rules.push_back({"heads read queries in reverse order",
                     [heads](const Facts&, const Row& r) { return Query{r.token, heads - 1 - r.head}; }});
  return rules;
}

}  // namespace

void propose_query_row(const Scene& scene, Proposals& list) {
  const Facts* f = &scene.facts;
  std::set<std::string> known;
  for (std::size_t c = 0; c < std::min(kCellsTriedQueryRow, scene.cells.size()); ++c) {
    const OpenCell& cell = scene.cells[c];
    for (const Query query : queries(scene, cell)) {
      if (!explains(*f, cell, query_read([query](const Row&) { return query; }))) continue;
      const bool row = query.token != cell.at.token;
      for (const QueryRowRule& rule : row ? row_rules(*f, cell, query) : head_rules(*f, cell, query)) {
        if (!known.insert(rule.text).second) continue;
        list.push_back({row ? "query_row" : "query_head",
                        row ? "loads the query of another row" : "loads the query of another head", rule.text,
                        "look at the index with which the query is loaded: query_start_loc[r] + i, head h", 1,
                        query_read([f, rule](const Row& r) { return rule.query(*f, r); })});
      }
    }
  }
}

}  // namespace quire::diagnose_detail
