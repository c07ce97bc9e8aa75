// SPDX-License-Identifier: Apache-2.0
// Rephrases a rule in plainer words: among all conditions that hold for every row of the rule, finds the cheapest one or two that
// hold for no other row.
#include <algorithm>
#include <array>
#include <optional>

#include "diagnose/pattern_conditions.h"
#include "diagnose/pattern_search.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kCommonPages =
    8;  // most pages tried, each read by all rows of the rule; pages with the fewest readers first

struct Phrase {
  Condition condition;
  double bits = 0;
};

/// Flags of the values of a column that rows of the mask have.
std::vector<std::uint8_t> values_in(const Column& column, const Mask& rows) {
  std::vector<std::uint8_t> in(column.values.size(), 0);
  for (std::size_t t = 0; t < rows.size(); ++t)
    if (rows[t] != 0) in[column.rank[t]] = 1;
  return in;
}

/// Conditions on one column that hold for all rows of the mask and are as tight as their test allows.
void add_phrases(const Columns& columns, const Column& column, const Mask& rows, std::vector<Phrase>& phrases) {
  const std::vector<std::uint8_t> in = values_in(column, rows);
  const auto count = static_cast<std::size_t>(std::count(in.begin(), in.end(), 1));
  if (count == 0 || count == in.size()) return;
  std::vector<std::int64_t> values;
  for (std::size_t i = 0; i < in.size(); ++i)
    if (in[i] != 0) values.push_back(column.values[i]);
  if (column.modulus > 0) {
    const std::int64_t first = values.front(), last = values.back(), m = column.modulus;
    const bool run = last - first + 1 == static_cast<std::int64_t>(count) && (first == last || first == 0 || last == m - 1);
    if (!run || (count > Facts::at(kRemainders) && m != columns.facts.page_size)) return;
    values.insert(values.begin(), m);
    phrases.push_back({{column.attribute, Test::modulo, values},
                       price_of_remainders(column.attribute, m, first, last, columns.facts.page_size)});
    return;
  }
  const bool requests = column.attribute == Attribute::request;
  const double log_choices = log_count(requests ? in.size() : columns.rows);
  if (count <= (requests ? kRequests : 1))
    phrases.push_back(
        {{column.attribute, Test::is, values},
         price(column.attribute, Test::is, values[0], log_choices) + static_cast<double>(count - 1) * (1 + log_choices)});
  const auto first = static_cast<std::size_t>(std::find(in.begin(), in.end(), 1) - in.begin());
  if (first > 0) {
    const std::int64_t bound = named_bound(column.attribute, column.values[first - 1], column.values[first]);
    phrases.push_back({{column.attribute, Test::from, {bound}}, price(column.attribute, Test::from, bound, log_choices)});
    // A looser bound that has a name may do, beside another condition.
    for (const std::int64_t named : {1, 2})
      if (named < bound && column.values.front() < named)
        phrases.push_back({{column.attribute, Test::from, {named}}, price(column.attribute, Test::from, named, log_choices)});
  }
  if (in.back() == 0)
    phrases.push_back(
        {{column.attribute, Test::to, {values.back()}}, price(column.attribute, Test::to, values.back(), log_choices)});
}

/// Pages that every row of the mask reads.
void add_pages(const Columns& columns, const Mask& rows, std::vector<Phrase>& phrases) {
  const PageColumns& pages = columns.pages;
  const auto some = static_cast<std::size_t>(std::find(rows.begin(), rows.end(), 1) - rows.begin());
  if (some == rows.size() || pages.first[some] >= pages.end[some]) return;
  struct Common {
    std::int64_t id;
    std::ptrdiff_t read_by;
  };
  std::vector<Common> common;
  const std::vector<std::uint32_t>& own = pages.page[pages.request[some]];
  // The pages at both ends of what one row reads tell it best from its neighbours.
  for (std::size_t c = pages.first[some]; c < pages.end[some]; ++c) {
    if (c >= pages.first[some] + kCommonPages && c + kCommonPages < pages.end[some]) continue;
    const Mask read = columns.rows_where({Attribute::page, Test::reads, {pages.ids[own[c]]}});
    if (std::equal(rows.begin(), rows.end(), read.begin(), [](std::uint8_t in, std::uint8_t reads) { return in <= reads; }))
      common.push_back({pages.ids[own[c]], std::count(read.begin(), read.end(), 1)});
  }
  std::stable_sort(common.begin(), common.end(), [](const Common& a, const Common& b) { return a.read_by < b.read_by; });
  for (std::size_t i = 0; i < std::min(kCommonPages, common.size()); ++i)
    phrases.push_back({{Attribute::page, Test::reads, {common[i].id}},
                       price(Attribute::page, Test::reads, common[i].id, log_count(pages.ids.size()))});
}

}  // namespace

void rephrase(const Columns& columns, Rule& rule) {
  if (rule.row_conditions.empty()) return;
  std::vector<Phrase> phrases;
  for (const Column& column : columns.numbers) add_phrases(columns, column, rule.rows, phrases);
  add_pages(columns, rule.rows, phrases);
  std::vector<Mask> masks;
  for (const Phrase& phrase : phrases) masks.push_back(columns.rows_where(phrase.condition));
  double least = rule.row_bits;
  std::optional<std::array<std::size_t, 2>> best;
  for (std::size_t i = 0; i < phrases.size(); ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      const double cost = phrases[i].bits + (i == j ? 0 : phrases[j].bits);
      if (cost >= least) continue;
      Mask both = masks[i];
      for (std::size_t t = 0; t < both.size(); ++t) both[t] &= masks[j][t];
      if (both != rule.rows) continue;
      least = cost;
      best = {j, i};
    }
  if (!best) return;
  rule.row_conditions = {phrases[(*best)[0]].condition};
  if ((*best)[0] != (*best)[1]) rule.row_conditions.push_back(phrases[(*best)[1]].condition);
  rule.bits += least - rule.row_bits;
  rule.row_bits = least;
}

}  // namespace quire::diagnose_detail
