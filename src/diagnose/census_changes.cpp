// SPDX-License-Identifier: Apache-2.0
// Pairs what was not read with what was read in its place.
#include "diagnose/census_changes.h"

#include <algorithm>
#include <map>

#include "text/formatted.h"
#include "text/runs.h"

namespace quire::diagnose_detail {
namespace {

/// A unit with the reads beyond the right number: negative if it was read too rarely.
struct Difference {
  CensusUnit unit;
  int more = 0;
};

/// The units that differ, by position. Single slots of one page, that were read equally often, are one.
std::vector<Difference> differences(const RowCensus& census) {
  std::vector<Difference> list;
  for (std::size_t i = 0; i < census.units.size(); ++i) {
    const CensusUnit& unit = census.units[i];
    const int more = census.counts[i] - unit.right;
    if (more == 0 || unit.kind == CensusUnit::Kind::sink) continue;
    const auto same = std::find_if(list.begin(), list.end(), [&](const Difference& d) {
      return d.more == more && d.unit.kind == unit.kind && d.unit.from == unit.from && d.unit.position == unit.position &&
             d.unit.right == unit.right && unit.offsets.size() == 1;
    });
    if (same == list.end()) {
      list.push_back({unit, more});
    } else {
      same->unit.offsets.push_back(unit.offsets.front());
      std::sort(same->unit.offsets.begin(), same->unit.offsets.end());
    }
  }
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.unit.position < b.unit.position; });
  return list;
}

/// Pages, sorted, each as often as it is, or was, read; empty if a part of a page alone was read less, or more, often.
struct PageLists {
  std::vector<std::int64_t> right, read;
  bool whole = true;
};
PageLists pages_of(const Facts& f, const RowCensus& census) {
  PageLists lists;
  for (std::size_t i = 0; i < census.units.size(); ++i) {
    const CensusUnit& unit = census.units[i];
    const bool same = census.counts[i] == unit.right;
    lists.whole =
        lists.whole && (same || (unit.kind == CensusUnit::Kind::cached && (unit.offsets.size() > 1 || f.page_size == 1)));
    if (unit.kind != CensusUnit::Kind::cached) continue;
    lists.right.insert(lists.right.end(), Facts::at(unit.right), unit.from);
    lists.read.insert(lists.read.end(), Facts::at(census.counts[i]), unit.from);
  }
  std::sort(lists.right.begin(), lists.right.end());
  std::sort(lists.read.begin(), lists.read.end());
  return lists;
}

std::vector<PageIdRule> possible_rules(const PageLists& lists) {
  using N = std::int64_t;
  std::vector<N> missing, extra;
  std::set_difference(lists.right.begin(), lists.right.end(), lists.read.begin(), lists.read.end(), std::back_inserter(missing));
  std::set_difference(lists.read.begin(), lists.read.end(), lists.right.begin(), lists.right.end(), std::back_inserter(extra));
  std::vector<PageIdRule> rules;
  if (missing.empty() || missing.size() != extra.size()) return rules;
  const N last = extra.back(), first = missing.front();
  if (first > last) {
    rules.push_back({formatted("page ids above {} as page {}", last, last), [last](N p) { return std::min(p, last); }});
    if (last == extra.front())
      rules.push_back(
          {formatted("page ids from {} on as page {}", first, last), [first, last](N p) { return p < first ? p : last; }});
    // A modulus takes the first missing page to an extra one, so it divides what lies between them.
    for (N m = lists.read.back() + 1; m <= first; ++m)
      if (std::binary_search(extra.begin(), extra.end(), first % m))
        rules.push_back({formatted("page ids modulo {}", m), [m](N p) { return p % m; }});
  }
  const N by = lists.read.front() - lists.right.front();
  if (by != 0) rules.push_back({formatted("page ids {:+}", by), [by](N p) { return p + by; }});
  return rules;
}

bool follows(const PageIdRule& rule, const PageLists& lists) {
  std::vector<std::int64_t> mapped;
  for (const std::int64_t page : lists.right) mapped.push_back(rule.map(page));
  std::sort(mapped.begin(), mapped.end());
  return mapped == lists.read;
}

std::string listed(const std::vector<std::int64_t>& pages) {
  std::string text;
  for (const std::int64_t page : pages) text += formatted("{}{}", text.empty() ? "" : ", ", page);
  return text;
}

void add_part(std::string& text, std::string part) {
  if (!part.empty()) text += (text.empty() ? "" : "; ") + std::move(part);
}

std::string column_words(const Facts& f, const RowCensus& census, const CensusChanges& changes) {
  constexpr std::size_t kListed = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(kListed, changes.columns.size()); ++i) {
    const CensusChanges::Column& c = changes.columns[i];
    text += formatted("{}column {} from page {}{}", i == 0 ? "" : ", ", c.column, c.read, owner(f, census.request, c.read));
  }
  return changes.columns.size() > kListed ? text + ", ..." : text;
}

std::string position_words(const CensusChanges& changes) {
  std::string text;
  if (!changes.left_out.empty()) add_part(text, formatted("positions {} left out", runs(changes.left_out)));
  std::map<std::pair<bool, int>, std::vector<std::int64_t>> groups;
  for (const CensusChanges::Again& a : changes.again) groups[{a.seen, a.times}].push_back(a.position);
  for (const auto& [kind, positions] : groups) {
    const auto& [seen, times] = kind;
    std::string part = formatted("positions {} read", runs(positions));
    if (seen || times > 1) part += formatted(" {} times", times + (seen ? 1 : 0));
    add_part(text, seen ? part : part + ", which it does not see");
  }
  return text;
}

std::string stranger_words(const Facts& f, const RowCensus& census, const CensusChanges& changes) {
  std::string text;
  for (const CensusUnit& unit : changes.strangers) {
    if (!text.empty() && text.size() > 60) return text + ", ...";
    text += formatted("{}slots {} of page {}{} read", text.empty() ? "" : ", ", runs(unit.offsets), unit.from,
                      owner(f, census.request, unit.from));
  }
  return text;
}

/// What the row did, without its name: "read pages 3, 7, 7 of the cache instead of 3, 4, 7: column 1 from page 7".
std::string deed(const Facts& f, const RowCensus& census) {
  constexpr std::size_t kListed = 10;  // pages
  const CensusChanges changes = changes_of(f, census);
  const PageLists lists = pages_of(f, census);
  std::string text;
  if (lists.whole && lists.right.size() <= kListed && lists.read.size() <= kListed && lists.right != lists.read)
    text = formatted("read pages {} of the cache instead of {}", listed(lists.read), listed(lists.right));
  std::string parts;
  add_part(parts, column_words(f, census, changes));
  add_part(parts, position_words(changes));
  add_part(parts, stranger_words(f, census, changes));
  if (changes.sink)
    add_part(parts, *changes.sink == 0 ? "the sink left out" : formatted("the sink counted {} times", *changes.sink));
  if (changes.of_fresh_rows) add_part(parts, "rows of key and value in place of the cache, or the reverse");
  if (text.empty()) return "read its keys otherwise: " + parts;
  return parts.empty() ? text : text + ": " + parts;
}

}  // namespace

std::int64_t column_of(const Facts& f, std::int64_t request, std::int64_t page) {
  const std::int64_t end = std::min(f.max_pages_per_req, (f.seq_lens[Facts::at(request)] - 1) / f.page_size + 1);
  for (std::int64_t j = 0; j < end; ++j)
    if (f.page(request, j) == page) return j;
  return -1;
}

std::string owner(const Facts& f, std::int64_t request, std::int64_t page) {
  if (column_of(f, request, page) >= 0) return "";
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    if (r != request && f.seq_lens[Facts::at(r)] > 0 && column_of(f, r, page) >= 0) return formatted(" (request {}'s)", r);
  return " (no request's)";
}

CensusChanges changes_of(const Facts& f, const RowCensus& census) {
  CensusChanges changes;
  if (census.units.back().kind == CensusUnit::Kind::sink && census.counts.back() != 1) changes.sink = census.counts.back();
  std::vector<Difference> list = differences(census);
  for (Difference& missing : list)
    for (Difference& extra : list)
      for (; missing.more < 0 && extra.more > 0 && missing.unit.kind == CensusUnit::Kind::cached &&
             extra.unit.kind == CensusUnit::Kind::cached && missing.unit.offsets.size() > 1 &&
             missing.unit.offsets == extra.unit.offsets;
           ++missing.more, --extra.more)
        changes.columns.push_back({missing.unit.position / f.page_size, missing.unit.from, extra.unit.from});
  std::map<std::int64_t, std::pair<int, int>> positions;  // -> (reads beyond the right number, right number)
  for (const auto& [unit, more] : list) {
    if (more == 0) continue;
    changes.of_fresh_rows = changes.of_fresh_rows || unit.kind == CensusUnit::Kind::fresh;
    const std::int64_t column = unit.kind == CensusUnit::Kind::cached ? column_of(f, census.request, unit.from) : -1;
    const bool own = unit.right > 0 || unit.kind == CensusUnit::Kind::fresh;
    if (!own && column < 0) changes.strangers.push_back(unit);
    for (const std::int64_t offset : unit.offsets) {
      auto& [times, right] = positions[(own ? unit.position : column * f.page_size) + offset];
      if (own || column >= 0) times += more, right += unit.right;
    }
  }
  for (const auto& [position, reads] : positions) {
    if (reads.first < 0) changes.left_out.push_back(position);
    if (reads.first > 0) changes.again.push_back({position, reads.first, reads.second > 0});
  }
  return changes;
}

std::optional<PageIdRule> page_id_rule(const Facts& facts, const std::vector<RowCensus>& rows) {
  if (rows.empty()) return std::nullopt;
  std::vector<PageLists> lists;
  for (const RowCensus& census : rows) lists.push_back(pages_of(facts, census));
  if (!std::ranges::all_of(lists, &PageLists::whole)) return std::nullopt;
  for (const PageLists& own : lists)
    for (const PageIdRule& rule : possible_rules(own))
      if (std::ranges::all_of(lists, [&](const PageLists& l) { return follows(rule, l); })) return rule;
  return std::nullopt;
}

std::vector<std::string> words(const Facts& facts, const std::vector<RowCensus>& rows, std::size_t most) {
  std::vector<std::string> list;
  const std::optional<PageIdRule> rule = page_id_rule(facts, rows);
  for (const RowCensus& census : rows) {
    if (list.size() == most) break;
    std::string text = formatted("row {} {}", census.token, deed(facts, census));
    if (rule) text += formatted("; {} rows looked at read {}", rows.size() == 1 ? "the" : "all", rule->text);
    text += formatted(" ({} equations have no other solution among {} candidates{})", census.equations, census.candidates,
                      census.capped ? ", which are not all pages" : "");
    list.push_back(std::move(text));
    if (rule) break;
  }
  return list;
}

}  // namespace quire::diagnose_detail
