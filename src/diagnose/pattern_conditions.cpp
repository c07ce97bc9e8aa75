// SPDX-License-Identifier: Apache-2.0
// Histograms of evidence over the values of an attribute; every test of it is one scan over them.
#include "diagnose/pattern_conditions.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace quire::diagnose_detail {
namespace {

constexpr double kUnclear = 0.25;  // right cells per wrong one

/// Indices with wrong cells, the purest first.
std::vector<std::size_t> purest(const std::vector<Tally>& sums, std::size_t most) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (sums[i].wrong > 0) order.push_back(i);
  const auto purer = [&](std::size_t a, std::size_t b) {
    const double left = sums[a].wrong * sums[b].right, right = sums[b].wrong * sums[a].right;
    return left != right ? left > right : sums[a].wrong != sums[b].wrong ? sums[a].wrong > sums[b].wrong : a < b;
  };
  const std::size_t count = std::min(most, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(), purer);
  order.resize(count);
  return order;
}

/// "is one of": the purest values, one more at a time.
template <typename Value, typename Bits>
void offer_listed(Attribute attribute, const std::vector<Tally>& sums, std::size_t most, Candidates& candidates, Value&& value,
                  Bits&& bits) {
  Tally inside;
  std::vector<std::int64_t> values;
  double price = 0;
  for (const std::size_t i : purest(sums, most)) {
    inside += sums[i];
    values.push_back(value(i));
    price = bits(i, values.size(), price);
    candidates.offer(attribute, Test::is, 0, inside, price, [&] {
      std::vector<std::int64_t> sorted = values;
      std::sort(sorted.begin(), sorted.end());
      return sorted;
    });
  }
}

void offer_thresholds(Attribute attribute, const std::vector<std::int64_t>& values, const std::vector<Tally>& sums,
                      double log_choices, Candidates& candidates) {
  Tally below, total;
  for (const Tally& sum : sums) total += sum;
  std::size_t before = values.size();  // the last value with evidence
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (sums[i].wrong + sums[i].right <= 0) continue;
    // A best bound lies between a value with right cells and one with wrong cells.
    if (before < i && sums[i].wrong > 0 && sums[before].right > 0) {
      const std::int64_t bound = named_bound(attribute, values[before], values[i]);
      candidates.offer(attribute, Test::from, 0, total - below, price(attribute, Test::from, bound, log_choices),
                       [&] { return std::vector{bound}; });
    }
    if (before < i && sums[before].wrong > 0 && sums[i].right > 0)
      candidates.offer(attribute, Test::to, 0, below, price(attribute, Test::to, values[before], log_choices),
                       [&] { return std::vector{values[before]}; });
    below += sums[i];
    before = i;
  }
}

/// Offers the run of values from the first with wrong cells to the last one, if right cells lie on both sides.
void offer_run(Attribute attribute, const std::vector<std::int64_t>& values, const std::vector<Tally>& sums, double log_choices,
               Candidates& candidates) {
  std::size_t first = sums.size(), last = 0, seen = 0, seen_before = 0;
  Tally inside, since;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].wrong + sums[i].right <= 0) continue;
    if (first == sums.size() && sums[i].wrong > 0) first = i, seen_before = seen;
    ++seen;
    if (first == sums.size()) continue;
    since += sums[i];
    if (sums[i].wrong > 0) inside += std::exchange(since, {}), last = i;
  }
  if (first >= last || seen_before == 0 || since.right <= 0) return;
  candidates.offer(attribute, Test::between, 0, inside,
                   price_of_run(attribute, values[first], values[last], log_choices, log_count(seen)),
                   [&] { return std::vector{values[first], values[last]}; });
}

/// Offers one remainder, the first or last few, or all but 0: the rules that tiles and pages give to a number. `tells` says
/// whether a bound or two could not say the same.
template <typename Tells>
void offer_remainders(Attribute attribute, std::int64_t modulus, const std::vector<Tally>& sums, std::int64_t page_size,
                      Candidates& candidates, Tells&& tells) {
  const auto offer = [&](const Tally& inside, std::int64_t first, std::int64_t last) {
    if (inside.wrong <= 0 || !candidates.score().enriched(inside) || !tells(first, last)) return;
    candidates.offer(attribute, Test::modulo, modulus, inside, price_of_remainders(attribute, modulus, first, last, page_size),
                     [&] {
                       std::vector<std::int64_t> values = {modulus};
                       for (std::int64_t v = first; v <= last; ++v) values.push_back(v);
                       return values;
                     });
  };
  Tally total, before;
  for (const Tally& sum : sums) total += sum;
  const bool long_list = modulus > kRemainders && modulus != page_size;
  for (std::int64_t i = 0; i < modulus; ++i) {
    const Tally& own = sums[Facts::at(i)];
    if (i > 0 && (!long_list || modulus - i <= kRemainders)) offer(total - before, i, modulus - 1);
    before += own;
    if (own.wrong <= 0) continue;
    offer(own, i, i);
    if (i + 1 < modulus && (!long_list || i < kRemainders)) offer(before, 0, i);
  }
}

/// `plain`: the column of the attribute itself, with its sums; the column if it has no modulus.
void offer_column(const Columns& columns, const Column& column, const std::vector<Tally>& sums, const Column& plain,
                  const std::vector<Tally>& plain_sums, Candidates& candidates) {
  if (column.modulus > 0)
    return offer_remainders(column.attribute, column.modulus, sums, columns.facts.page_size, candidates,
                            [&](std::int64_t first, std::int64_t last) {
                              return alternates(plain.values, column.modulus, first, last,
                                                [&](std::size_t i) { return plain_sums[i].wrong + plain_sums[i].right > 0; });
                            });
  const bool requests = column.attribute == Attribute::request;
  const double log_choices = columns.log_choices(column);
  const std::size_t most = requests ? kRequests : 1;
  offer_listed(
      column.attribute, sums, most, candidates, [&](std::size_t i) { return column.values[i]; },
      [&](std::size_t i, std::size_t count, double before) {
        if (requests) return price_of_requests(count, column.values.size());
        return before + (count == 1 ? price(column.attribute, Test::is, column.values[i], log_choices) : 1 + log_choices);
      });
  offer_thresholds(column.attribute, column.values, sums, log_choices, candidates);
  if (!requests) offer_run(column.attribute, column.values, sums, log_choices, candidates);
}

/// Evidence per physical page. A row adds to a range of its request's columns: differences at both ends, summed up afterwards.
std::vector<Tally> by_page(const PageColumns& pages, const std::vector<Tally>& of_row) {
  std::vector<std::vector<Tally>> steps(pages.page.size());
  for (std::size_t r = 0; r < steps.size(); ++r) steps[r].resize(pages.page[r].size() + 1);
  for (std::size_t t = 0; t < of_row.size(); ++t) {
    if (pages.first[t] >= pages.end[t]) continue;
    std::vector<Tally>& own = steps[pages.request[t]];
    own[pages.first[t]] += of_row[t];
    own[pages.end[t]] = own[pages.end[t]] - of_row[t];
  }
  std::vector<Tally> sums(pages.ids.size());
  for (std::size_t r = 0; r < steps.size(); ++r) {
    Tally running;
    for (std::size_t c = 0; c < pages.page[r].size(); ++c) sums[pages.page[r][c]] += running += steps[r][c];
  }
  return sums;
}

/// Pages one by one: each next one is judged by the rows that the ones before it leave.
void offer_pages(const Columns& columns, std::vector<Tally> of_row, Candidates& candidates) {
  const std::vector<std::int64_t>& ids = columns.pages.ids;
  if (ids.empty()) return;
  const double log_choices = log_count(ids.size());
  Tally inside, total;
  for (const Tally& row : of_row) total += row;
  std::vector<std::int64_t> chosen;
  double bits = 0;
  for (std::size_t turn = 0; turn < kPages; ++turn) {
    const std::vector<Tally> sums = by_page(columns.pages, of_row);
    const auto local_cost = [&](std::size_t p) {
      Tally with = inside;
      with += sums[p];
      return candidates.score().data(with);
    };
    std::size_t best = ids.size();
    double least = 0;
    for (std::size_t p = 0; p < ids.size(); ++p) {
      if (sums[p].wrong <= 0 || (!candidates.score().enriched(sums[p]) && turn > 0)) continue;
      const double cost = local_cost(p);
      if (best == ids.size() || cost < least) best = p, least = cost;
    }
    if (turn == 0)
      for (std::size_t p = 0; p < ids.size(); ++p)
        if (sums[p].right > 0)
          candidates.offer(Attribute::page, Test::not_reads, 0, total - sums[p],
                           price(Attribute::page, Test::not_reads, ids[p], log_choices), [&] { return std::vector{ids[p]}; });
    if (best == ids.size()) return;
    // Several pages are named only if each of them is clear.
    if (turn > 0 && sums[best].right > kUnclear * sums[best].wrong) return;
    inside += sums[best];
    chosen.push_back(ids[best]);
    bits += price(Attribute::page, Test::reads, ids[best], log_choices);
    std::vector<std::int64_t> sorted = chosen;
    std::sort(sorted.begin(), sorted.end());
    candidates.offer(Attribute::page, Test::reads, 0, inside, bits, [&] { return sorted; });
    if (sums[best].right > kUnclear * sums[best].wrong) return;
    const Mask read = columns.rows_where({Attribute::page, Test::reads, {ids[best]}});
    for (std::size_t t = 0; t < of_row.size(); ++t)
      if (read[t] != 0) of_row[t] = {};
  }
}

void offer_intervals(Attribute attribute, const std::vector<Tally>& sums, double log_choices, Candidates& candidates) {
  const auto last = static_cast<std::int64_t>(sums.size()) - 1, half = (last + 1) / 2;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].wrong <= 0) continue;
    Tally inside;
    for (std::size_t j = i; j < sums.size(); ++j) {
      inside += sums[j];
      const auto a = static_cast<std::int64_t>(i), b = static_cast<std::int64_t>(j);
      if (sums[j].wrong <= 0 || (j == i && last > 0) || (a == 0 && b == last)) continue;
      const bool one_end = a == 0 || b == last, halves = one_end && (a == half || b == half - 1);
      const double bits = price(attribute, one_end ? Test::from : Test::between, a == 0 ? b + 1 : a, log_choices);
      candidates.offer(attribute, Test::between, 0, inside, halves ? 3 : bits, [&] { return std::vector{a, b}; });
    }
  }
}

}  // namespace

double log_count(std::size_t count) { return std::log2(static_cast<double>(std::max<std::size_t>(2, count))); }

std::int64_t named_bound(Attribute attribute, std::int64_t below, std::int64_t bound) {
  const bool from_2 = attribute == Attribute::query_len || attribute == Attribute::num_keys;
  if (from_2 && below == 1) return 2;
  return attribute == Attribute::context_len && below == 0 ? 1 : bound;
}

std::vector<Candidate> Candidates::cheapest_first() const {
  std::vector<Candidate> list;
  list.reserve(best_.size());
  for (const auto& [kind, candidate] : best_) list.push_back(candidate);
  std::stable_sort(list.begin(), list.end(), [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  return list;
}

void offer_rows(const Columns& columns, const std::vector<Tally>& of_row, Candidates& candidates) {
  const std::vector<std::vector<Tally>> sums = columns.by_value(of_row);
  std::size_t plain = 0;  // remainders follow their attribute
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (columns.numbers[i].modulus == 0) plain = i;
    offer_column(columns, columns.numbers[i], sums[i], columns.numbers[plain], sums[plain], candidates);
  }
  offer_pages(columns, of_row, candidates);
}

void offer_axis(Attribute attribute, const std::vector<Tally>& of_index, Candidates& candidates) {
  const double log_choices = log_count(of_index.size());
  const auto same = [](std::size_t i) { return static_cast<std::int64_t>(i); };
  offer_listed(attribute, of_index, kHeads, candidates, same, [&](std::size_t i, std::size_t count, double before) {
    return before + (count == 1 ? price(attribute, Test::is, same(i), log_choices) : 1 + log_choices);
  });
  offer_intervals(attribute, of_index, log_choices, candidates);
  for (const std::int64_t m : {2, 3, 4, 5, 6, 8, 12, 16, 32, 64}) {
    if (2 * m > same(of_index.size())) break;
    std::vector<Tally> sums(Facts::at(m));
    for (std::size_t i = 0; i < of_index.size(); ++i) sums[i % sums.size()] += of_index[i];
    offer_remainders(attribute, m, sums, /*page_size=*/0, candidates, [](std::int64_t, std::int64_t) { return true; });
  }
}

void offer_heads(const Facts& f, const std::vector<Tally>& of_head, Candidates& candidates) {
  offer_axis(Attribute::head, of_head, candidates);
  if (f.group == 1 || f.num_kv_heads == 1) return;
  std::vector<Tally> of_kv(Facts::at(f.num_kv_heads)), in_group(Facts::at(f.group));
  for (std::size_t h = 0; h < of_head.size(); ++h) {
    of_kv[h / in_group.size()] += of_head[h];
    in_group[h % in_group.size()] += of_head[h];
  }
  offer_axis(Attribute::kv_head, of_kv, candidates);
  offer_axis(Attribute::head_in_group, in_group, candidates);
}

}  // namespace quire::diagnose_detail
