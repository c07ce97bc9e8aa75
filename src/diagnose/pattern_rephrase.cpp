// SPDX-License-Identifier: Apache-2.0
// Rephrases a rule in plainer words: among all conditions that hold for every row of the rule, finds the cheapest one or two that
// hold for no other row, and what else says the same.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "diagnose/pattern_conditions.h"
#include "diagnose/pattern_search.h"

namespace quire::diagnose_detail {
namespace {

// Pages tried, at most, that all rows of the rule read. Those with the fewest readers come first; more cost time and name
// nothing.
constexpr std::size_t kCommonPages = 8;
constexpr std::size_t kAlso = 3;  // other conditions that are named

struct Phrase {
  Condition condition;
  double bits = 0;
  const Column* plain = nullptr;  ///< of remainders: the column of the attribute itself

  /// Whether a bound could not say the same of these rows: see alternates().
  bool tells(const Mask& rows) const {
    if (plain == nullptr) return true;
    std::vector<std::uint8_t> seen(plain->values.size(), 0);
    for (std::size_t t = 0; t < rows.size(); ++t)
      if (rows[t] != 0) seen[plain->rank[t]] = 1;
    return alternates(plain->values, condition.values[0], condition.values[1], condition.values.back(),
                      [&](std::size_t i) { return seen[i] != 0; });
  }
};

/// Flags of the values of a column that rows of the mask have.
std::vector<std::uint8_t> values_in(const Column& column, const Mask& rows) {
  std::vector<std::uint8_t> in(column.values.size(), 0);
  for (std::size_t t = 0; t < rows.size(); ++t)
    if (rows[t] != 0) in[column.rank[t]] = 1;
  return in;
}

/// Conditions on one column that hold for all rows of the mask and are as tight as their test allows.
void add_phrases(const Columns& columns, const Column& column, const Column& plain, const Mask& rows,
                 std::vector<Phrase>& phrases) {
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
                       price_of_remainders(column.attribute, m, first, last, columns.facts.page_size),
                       &plain});
    return;
  }
  const bool requests = column.attribute == Attribute::request;
  const double log_choices = columns.log_choices(column);
  if (count <= (requests ? kRequests : 1))
    phrases.push_back(
        {{column.attribute, Test::is, values},
         requests ? price_of_requests(count, in.size()) : price(column.attribute, Test::is, values[0], log_choices)});
  const auto first = static_cast<std::size_t>(std::find(in.begin(), in.end(), 1) - in.begin());
  if (first > 0 && in.back() == 0 && count > 1 && !requests)
    phrases.push_back({{column.attribute, Test::between, {values.front(), values.back()}},
                       price_of_run(column.attribute, values.front(), values.back(), log_choices, log_count(in.size()))});
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

/// Whether a remainder of the rule says, beside its other conditions, no more than a bound would.
bool is_accidental(const Columns& columns, const Rule& rule) {
  return std::ranges::any_of(rule.row_conditions, [&](const Condition& c) {
    if (c.test != Test::modulo) return false;
    const auto plain = std::ranges::find_if(
        columns.numbers, [&](const Column& column) { return column.attribute == c.attribute && column.modulus == 0; });
    Mask beside(rule.rows.size(), 1);
    for (const Condition& other : rule.row_conditions) {
      if (other == c) continue;
      const Mask holds = columns.rows_where(other);
      for (std::size_t t = 0; t < beside.size(); ++t) beside[t] &= holds[t];
    }
    return !Phrase{c, 0, &*plain}.tells(beside);
  });
}

/// Other attributes of which one condition selects the rows, cheapest first.
void add_also(const std::vector<Phrase>& phrases, const std::vector<Mask>& masks, Rule& rule) {
  std::vector<const Phrase*> same;
  for (std::size_t i = 0; i < phrases.size(); ++i)
    if (masks[i] == rule.rows && phrases[i].tells(Mask(rule.rows.size(), 1))) same.push_back(&phrases[i]);
  std::stable_sort(same.begin(), same.end(), [](const Phrase* a, const Phrase* b) { return a->bits < b->bits; });
  std::vector<Condition> named = rule.row_conditions;
  if (named.size() > 1) named.clear();
  for (const Phrase* phrase : same) {
    const Condition& c = phrase->condition;
    const bool one_length = c.test == Test::is && c.attribute != Attribute::request && c.values[0] > 1;  // names a request
    if (rule.also.size() == kAlso || one_length ||
        std::any_of(named.begin(), named.end(), [&](const Condition& o) { return o.attribute == c.attribute; }))
      continue;
    named.push_back(c);
    rule.also.push_back({c});
  }
}

}  // namespace

void rephrase(const Columns& columns, Rule& rule) {
  if (rule.row_conditions.empty()) return;
  std::vector<Phrase> phrases;
  const Column* plain = nullptr;  // remainders follow their attribute
  for (const Column& column : columns.numbers) {
    if (column.modulus == 0) plain = &column;
    add_phrases(columns, column, *plain, rule.rows, phrases);
  }
  add_pages(columns, rule.rows, phrases);
  std::vector<Mask> masks;
  for (const Phrase& phrase : phrases) masks.push_back(columns.rows_where(phrase.condition));
  double least = is_accidental(columns, rule) ? std::numeric_limits<double>::infinity() : rule.row_bits;
  std::optional<std::array<std::size_t, 2>> best;
  const Mask all(rule.rows.size(), 1);
  for (std::size_t i = 0; i < phrases.size(); ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      const double cost = phrases[i].bits + (i == j ? 0 : phrases[j].bits);
      if (cost >= least) continue;
      Mask both = masks[i];
      for (std::size_t t = 0; t < both.size(); ++t) both[t] &= masks[j][t];
      if (both != rule.rows) continue;
      if (!phrases[i].tells(i == j ? all : masks[j]) || !phrases[j].tells(i == j ? all : masks[i])) continue;
      least = cost;
      best = {j, i};
    }
  if (best) {
    rule.row_conditions = {phrases[(*best)[0]].condition};
    if ((*best)[0] != (*best)[1]) rule.row_conditions.push_back(phrases[(*best)[1]].condition);
    rule.bits += least - rule.row_bits;
    rule.row_bits = least;
  }
  add_also(phrases, masks, rule);
}

}  // namespace quire::diagnose_detail
