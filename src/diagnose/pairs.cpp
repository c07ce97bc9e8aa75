// SPDX-License-Identifier: Apache-2.0
// Reads candidates of a rule off the first key that moved, and keeps what every pair of every row follows.
#include "diagnose/pairs.h"

#include <algorithm>
#include <map>

#include "diagnose/census_changes.h"
#include "text/formatted.h"
#include "text/runs.h"

namespace quire::diagnose_detail {
namespace {

using N = std::int64_t;
using Change = std::function<void(const Facts&, const Row&, N position, Place& place)>;

bool same_slot(const Place& a, const Place& b) { return a.page == b.page && a.offset == b.offset; }

/// The slot that the table gives a position; positions outside of the table are those at its ends.
Place slot_at(const Facts& f, N req, N position) {
  const N inside = std::clamp<N>(position, 0, f.max_pages_per_req * f.page_size - 1);
  return {Place::Kind::cache, f.page(req, inside / f.page_size), inside % f.page_size, 0};
}

struct Moved {
  Row row;
  N position = 0;
  Place right, read;
  bool differs() const { return !same_slot(right, read); }
};

/// The pairs of cached keys of all rows.
std::vector<Moved> cached_pairs(const Facts& f, const std::vector<RowCensus>& rows) {
  const Model truth(f);
  std::vector<Moved> list;
  for (const RowCensus& census : rows)
    for (const auto& [position, place] : census.pairs) {
      const Row row = truth.row(census.token, 0);
      if (place.kind == Place::Kind::cache) list.push_back({row, position, truth.place(truth, row, Side::key, position), place});
    }
  return list;
}

bool follow(const PairRule& rule, const Facts& f, const std::vector<Moved>& pairs) {
  return std::ranges::all_of(pairs, [&](const Moved& p) {
    Place place = p.right;
    rule.change(f, p.row, p.position, place);
    return same_slot(place, p.read);
  });
}

/// The same distance from each position, in the row's own pages or in those of another request.
void add_distances(const Facts& f, const Moved& first, std::vector<PairRule>& rules) {
  for (N i = 0; i < f.num_reqs; ++i) {
    const N by_request = i, request = (first.row.req + i) % f.num_reqs;
    const N column = column_of(f, request, first.read.page);
    if (column < 0) continue;
    const N by = column * f.page_size + first.read.offset - first.position;
    const std::string of = i == 0 ? "" : formatted(" of request r {:+}, modulo {}", i, f.num_reqs);
    const std::string text = by == 0                 ? "the same position"
                             : by % f.page_size == 0 ? formatted("the page {:+} columns further", by / f.page_size)
                                                     : formatted("position k {:+}", by);
    rules.push_back({text + of, [by, by_request](const Facts& facts, const Row& row, N k, Place& place) {
                       place = slot_at(facts, (row.req + by_request) % facts.num_reqs, k + by);
                     }});
    if (i > 0)
      rules.push_back(
          {text + formatted(" of request {}", request),
           [by, request](const Facts& facts, const Row&, N k, Place& place) { place = slot_at(facts, request, k + by); }});
  }
}

constexpr std::size_t kListed = 4;  // moves in words

/// "slot 0 from 4, slot 1 from 5, and so on".
std::string move_words(const char* what, const std::map<N, N>& from) {
  std::string text;
  std::size_t count = 0;
  for (const auto& [to, source] : from)
    if (to != source && count++ < kListed) text += formatted("{}{} {} from {}", count == 1 ? "" : ", ", what, to, source);
  return count > kListed ? text + ", and so on" : text;
}

std::string slot_words(const std::map<N, N>& slots, N size) {
  const N by = (slots.begin()->second - slots.begin()->first + size) % size;
  const auto all = [&](auto&& rule) {
    return std::ranges::all_of(slots, [&](const auto& s) { return rule(s.first) == s.second; });
  };
  if (all([&](N o) { return (o + by) % size; })) return formatted("slots rotated by {} in each page", by);
  if (all([&](N o) { return size - 1 - o; })) return "slots in reverse order in each page";
  return move_words("slot", slots) + " in each page";
}

/// The same slots in every page, the last one included or left as it is.
void add_slots(const Facts& f, const std::vector<Moved>& pairs, std::vector<PairRule>& rules) {
  std::map<N, N> slots;
  for (const Moved& p : pairs) {
    if (p.read.page != p.right.page) return;
    const auto known = slots.try_emplace(p.right.offset, p.read.offset).first;
    if (p.differs()) known->second = p.read.offset;
  }
  for (const bool full_pages : {false, true})
    rules.push_back({slot_words(slots, f.page_size) + (full_pages ? " that is full" : ""),
                     [slots, full_pages](const Facts& facts, const Row& row, N k, Place& place) {
                       if (full_pages && (k / facts.page_size + 1) * facts.page_size > row.cached_len) return;
                       if (const auto found = slots.find(place.offset); found != slots.end()) place.offset = found->second;
                     }});
}

/// The same columns of the table in every request.
void add_columns(const Facts& f, const std::vector<Moved>& pairs, std::vector<PairRule>& rules) {
  std::map<N, N> columns;
  for (const Moved& p : pairs) {
    const N column = column_of(f, p.row.req, p.read.page);
    if (column < 0) return;
    if (p.differs()) columns[p.position / f.page_size] = column;
  }
  rules.push_back({move_words("the page of column", columns), [columns](const Facts& facts, const Row& row, N k, Place& place) {
                     const auto found = columns.find(k / facts.page_size);
                     if (found != columns.end()) place.page = facts.page(row.req, found->second);
                   }});
}

/// What each row has read, without a rule: whole pages, or slots.
PairRule listed(const Facts& f, const std::vector<Moved>& pairs) {
  const bool whole = std::ranges::all_of(pairs, [](const Moved& p) { return p.read.offset == p.right.offset; });
  std::map<std::pair<N, N>, Place> map;  // (request, column or position) -> page or slot
  std::string text;
  std::size_t count = 0;
  for (const Moved& p : pairs) {
    const N at = whole ? p.position / f.page_size : p.position;
    if (!p.differs() || !map.try_emplace({p.row.req, at}, p.read).second || count++ >= kListed) continue;
    text +=
        formatted("{}{} {} of request {} from {}page {}{}", count == 1 ? "" : ", ", whole ? "column" : "position", at, p.row.req,
                  whole ? "" : formatted("slot {} of ", p.read.offset), p.read.page, owner(f, p.row.req, p.read.page));
  }
  if (count > kListed) text += ", and so on";
  if (!whole) return {text, {}};
  return {text, [map](const Facts& facts, const Row& row, N k, Place& place) {
            if (const auto found = map.find({row.req, k / facts.page_size}); found != map.end()) place.page = found->second.page;
          }};
}

}  // namespace

PairRule pair_rule(const Facts& facts, const std::vector<RowCensus>& rows) {
  const std::vector<Moved> pairs = cached_pairs(facts, rows);
  std::vector<PairRule> rules;
  if (const std::optional<PageIdRule> ids = page_id_rule(facts, rows))
    rules.push_back({ids->text, [map = ids->map](const Facts&, const Row&, N, Place& place) { place.page = map(place.page); }});
  if (const auto first = std::ranges::find_if(pairs, &Moved::differs); first != pairs.end()) add_distances(facts, *first, rules);
  rules.push_back({"pages in reverse order", [](const Facts& f, const Row& row, N k, Place& place) {
                     const N last = (std::min(row.cached_len, row.seq_len) - 1) / f.page_size;
                     place.page = f.page(row.req, std::max<N>(0, last - k / f.page_size));
                   }});
  add_columns(facts, pairs, rules);
  add_slots(facts, pairs, rules);
  for (PairRule& rule : rules)
    if (follow(rule, facts, pairs)) return std::move(rule);
  return listed(facts, pairs);
}

std::vector<RowCensus> rows_of(const std::vector<RowCensus>& pairs, Sides moved) {
  std::vector<RowCensus> rows;
  std::ranges::copy_if(pairs, std::back_inserter(rows), [&](const RowCensus& c) { return c.moved.key == moved.key; });
  return rows;
}

std::vector<std::string> pair_words(const Facts& facts, const std::vector<RowCensus>& pairs) {
  std::vector<std::string> list;
  for (const Sides moved : {kSideSets[2], kSideSets[1]}) {  // V first
    const std::vector<RowCensus> rows = rows_of(pairs, moved);
    if (rows.empty()) continue;
    std::vector<N> tokens;
    for (const RowCensus& census : rows) tokens.push_back(census.token);
    std::ranges::sort(tokens);
    list.push_back(
        formatted("row{} {} read{} {}, but not {}, from other slots: {} ({} equations have no other solution among {} "
                  "candidates{})",
                  rows.size() == 1 ? "" : "s", runs(tokens), rows.size() == 1 ? "s" : "", moved.text(), moved.key ? "V" : "K",
                  pair_rule(facts, rows).text, rows.front().equations, rows.front().candidates,
                  rows.front().capped ? ", which are not all pages" : ""));
  }
  if (list.size() > 1) list.back() = "or " + list.back() + ": both give the same weight to each V";
  return list;
}

}  // namespace quire::diagnose_detail
