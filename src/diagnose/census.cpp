// SPDX-License-Identifier: Apache-2.0
// Chooses rows and candidates, rounds the null vector to counts, and keeps what the equations leave no doubt about.
#include "diagnose/census.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "semantics/ceil_div.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kRows = 8;              // rows with a census; each costs up to about 0.1 s
constexpr int kSilent = 2;                    // rows without a solution, after which no other row is asked
constexpr std::size_t kMostEquations = 1024;  // of a row; more take time and add little
constexpr std::size_t kMostRight = 256;       // units that the right computation reads: bounds the time of one factorisation
constexpr std::size_t kMostUnits = 4096;      // candidates of a row
constexpr double kMostColumnNumbers = 4e6;    // elements of all columns: 32 MB
constexpr double kMostColumnWork = 6e7;       // multiply-adds of all columns: about 0.05 s
constexpr double kSolving = 3e8;              // multiply-adds of one search for counts: about 0.1 s
constexpr std::size_t kMostSingleKeys = 192;  // single keys as candidates
constexpr double kRead = 0.02;                // share of one reading; less is noise
constexpr double kAlike = 1 - 1e-6;           // cosine of the columns of units that hold the same
constexpr int kMostCount = 64;                // larger counts than this are noise
// Other counts must change the equations by this root mean square, in tolerances, and by thrice what the found ones leave. Less
// takes rounding for keys; more is silent on outputs of 8 and 16 bits over long contexts.
constexpr double kLeastChange = 0.25, kClearlyWorse = 3;

using Kind = CensusUnit::Kind;
using Units = std::vector<CensusUnit>;

/// Pages in the order in which they may have been read: the request's own, those of other requests, the rest.
std::vector<std::int64_t> pages_by_interest(const Facts& f, std::int64_t request, std::size_t most) {
  std::vector<std::int64_t> order;
  std::vector<bool> listed(Facts::at(f.num_pages));
  const auto add = [&](std::int64_t page) {
    if (page < 0 || listed[Facts::at(page)] || order.size() == most) return;
    listed[Facts::at(page)] = true;
    order.push_back(page);
  };
  for (std::int64_t i = 0; i < f.num_reqs; ++i) {
    const std::int64_t r = (request + i) % f.num_reqs;
    const std::int64_t used = semantics::ceil_div(f.seq_lens[Facts::at(r)], f.page_size);
    for (std::int64_t j = 0; j < std::min(used, f.max_pages_per_req); ++j) add(f.page(r, j));
  }
  for (std::int64_t page = 0; page < f.num_pages; ++page) add(page);
  return order;
}

/// The places in which a page may be read: the sets of slots of the right computation and whole pages; where biases depend on
/// the position, each column of the table.
Units places_of(const CensusRow& row, const Units& right) {
  constexpr std::size_t kMostSets = 4;
  const Facts& f = row.facts();
  const bool places_matter = row.places_matter();
  Units places;
  CensusUnit whole;
  for (std::int64_t o = 0; o < f.page_size; ++o) whole.offsets.push_back(o);
  const auto add = [&](const CensusUnit& unit) {
    const bool known = std::any_of(places.begin(), places.end(), [&](const CensusUnit& p) {
      return p.offsets == unit.offsets && (!places_matter || p.position == unit.position);
    });
    if (unit.kind != Kind::sink && !known && (places_matter || places.size() < kMostSets)) places.push_back(unit);
  };
  for (const CensusUnit& unit : right) add(unit);
  if (!places_matter) add(whole);
  for (CensusUnit& place : places) place.kind = Kind::cached, place.right = 0;
  return places;
}

/// The rows of this step of the row's request, in blocks of page_size, that the row does not see. Returns false if they are more
/// than `most`, of which those next to the context are added.
bool add_fresh(const CensusRow& row, Units& units, std::size_t most) {
  const Facts& f = row.facts();
  if (!f.batch.key.present() || !row.moved().both()) return true;
  const Row& r = row.row();
  const std::int64_t first = r.first_token - r.context_len();  // row of position 0
  for (std::int64_t at = r.context_len() / f.page_size * f.page_size; at < r.seq_len; at += f.page_size) {
    if (most == 0) return false;
    CensusUnit unit{Kind::fresh, first + at, {}, at, 0};
    for (std::int64_t o = 0; o < f.page_size; ++o)
      if (at + o >= r.context_len() && at + o < r.seq_len) unit.offsets.push_back(o);
    if (std::any_of(units.begin(), units.end(), [&](const CensusUnit& u) { return u.same_keys(unit); })) continue;
    units.push_back(unit);
    --most;
  }
  return true;
}

struct Candidates {
  Units units;
  bool capped = false;
};

/// Whole pages and blocks.
Candidates coarse(const CensusRow& row, const Units& right) {
  const Facts& f = row.facts();
  Candidates list{right, false};
  const double per_unit = static_cast<double>(f.page_size) * row.work_per_key();
  const auto most = static_cast<std::size_t>(std::min(
      {static_cast<double>(kMostUnits), kMostColumnNumbers / static_cast<double>(row.equations()), kMostColumnWork / per_unit}));
  const bool all_fresh = add_fresh(row, list.units, most / 2);
  const Units places = places_of(row, right);
  if (places.empty()) return list;
  const std::size_t most_pages = (most - (list.units.size() - right.size())) / places.size();
  std::vector<std::size_t> left;  // pages that a place may still have; the V of a place with other K spans its keys in each head
  for (const CensusUnit& place : places) left.push_back(row.moved().value ? most_pages : place.offsets.size() * row.heads() / 2);
  list.capped = !all_fresh || most_pages < Facts::at(f.num_pages);
  for (const std::int64_t page : pages_by_interest(f, row.row().req, most_pages))
    for (std::size_t i = 0; i < places.size(); ++i) {
      CensusUnit unit = places[i];
      unit.from = page;
      const bool known = std::any_of(right.begin(), right.end(), [&](const CensusUnit& u) {
        return u.same_keys(unit) && (!row.places_matter() || u.position == unit.position);
      });
      if (known || left[i] == 0) continue;
      list.units.push_back(std::move(unit));
      --left[i];
    }
  return list;
}

/// Counts of candidates as real numbers, and what is known of them.
struct Solution {
  CensusSystem system;
  std::vector<double> counts;
  std::vector<bool> light;  ///< too light to tell whether it was read
  double unit = 1;          ///< the number that stands for one reading
};

/// Lengths of columns below this, in tolerances, leave open whether the unit was read.
double visible_length(const CensusSystem& s) { return kLeastChange * 2 * std::sqrt(static_cast<double>(s.equations)); }

Solution solved(const CensusRow& row, const Units& units) {
  Solution found{row.system(units), {}, {}, 1};
  CensusSystem& s = found.system;
  const auto right = static_cast<double>(std::count_if(units.begin(), units.end(), [](const auto& u) { return u.right > 0; }));
  const double step = std::pow(right + 16, 3) / 6 + static_cast<double>(s.equations * s.candidates());
  const auto steps = static_cast<std::size_t>(std::clamp(kSolving / step, 8.0, 128.0));
  constexpr int kScalings = 2;
  for (int i = 0; i < kScalings; ++i) {
    found.light.clear();
    for (std::size_t c = 0; c < s.candidates(); ++c) {
      found.light.push_back(length(s.column(c)) < visible_length(s));
      if (found.light[c] && units[c].right == 0) s.mass[c] = 0;
    }
    found.counts = bounded_null_vector(s, steps);
    if (!s.rescale(found.counts)) break;
    s.start = found.counts;
  }
  return found;
}

/// Counts that may stand for one reading: the median of the right units first, then every other count that is no noise.
std::vector<double> sizes_of_one(const Units& units, const Solution& found) {
  constexpr std::size_t kSizes = 24;
  constexpr double kSame = 0.02;  // sizes closer than this round alike
  double most = 0;
  for (std::size_t i = 0; i < units.size(); ++i) most = found.light[i] ? most : std::max(most, found.counts[i]);
  std::vector<double> all, right, sizes;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (found.light[i] || !(found.counts[i] * kMostCount > most)) continue;
    all.push_back(found.counts[i]);
    if (units[i].right > 0) right.push_back(found.counts[i] / units[i].right);
  }
  std::sort(right.begin(), right.end());
  if (!right.empty()) all.insert(all.begin(), right[right.size() / 2]);
  for (const double size : all)
    if (sizes.size() < kSizes && std::ranges::none_of(sizes, [&](double s) { return std::fabs(s - size) < kSame * s; }))
      sizes.push_back(size);
  return sizes;
}

/// Counts as whole numbers, if some size of one reading makes every element fit.
std::optional<std::vector<double>> rounded_counts(const Units& units, Solution& found, double& worst) {
  const std::vector<double> sizes = sizes_of_one(units, found);
  std::optional<std::vector<double>> best;
  for (const double size : sizes) {
    std::vector<double> counts(units.size());
    for (std::size_t i = 0; i < units.size(); ++i)
      counts[i] = found.light[i] ? units[i].right : std::round(found.counts[i] / size);
    const double left = found.system.worst(counts);
    if (left <= 1 && (!best || left < worst)) worst = left, best = counts, found.unit = size;
  }
  if (!best && !sizes.empty()) found.unit = sizes.front();
  return best;
}

double cosine(const CensusSystem& s, std::size_t a, std::size_t b) {
  const auto x = s.column(a), y = s.column(b);
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0) / (length(x) * length(y));
}

/// Other counts must change the equations by at least this length.
double needed_change(const CensusSystem& s, const std::vector<double>& counts) {
  return std::max(kLeastChange * std::sqrt(static_cast<double>(s.equations)), kClearlyWorse * s.left(counts));
}

/// Whether the unit weighs enough that the equations tell how often it was read.
bool weighs(const CensusSystem& s, std::size_t unit, double needed) {
  constexpr double kEnough = 4;  // columns of units that are alike differ by less than their lengths
  return s.mass[unit] > 0 && length(s.column(unit)) >= kEnough * needed;
}

/// Whether no other counts fit as well. All units that were, or should have been, read are asked, and of the others those that
/// are most like what was read and not expected, as many as the equations can tell apart. Units that do not weigh enough are
/// taken to be read as expected.
bool is_unique(const Units& units, const Solution& found, const std::vector<double>& counts) {
  const CensusSystem& s = found.system;
  const double needed = needed_change(s, counts);
  std::vector<std::size_t> among, odd;
  std::vector<std::pair<double, std::size_t>> others;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (counts[i] != units[i].right) odd.push_back(i);
    if (counts[i] != units[i].right && !weighs(s, i, needed)) return false;
    if (weighs(s, i, needed) && (units[i].right > 0 || counts[i] > 0)) among.push_back(i);
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (units[i].right > 0 || counts[i] > 0 || !weighs(s, i, needed)) continue;
    double most = 0;
    for (const std::size_t j : odd) most = std::max(most, std::fabs(cosine(s, i, j)));
    others.emplace_back(-most, i);
  }
  std::sort(others.begin(), others.end());
  constexpr std::size_t kMostAsked = 192;
  // Nobody read the others, so two of them that are alike (pages of zeros, or a page at two positions) leave nothing open.
  constexpr double kInPlaceOf = 0.9;  // cosine of columns of which one stands for both
  const std::size_t first = among.size();
  for (const auto& [similar, i] : others) {
    if (among.size() >= std::min(s.equations / 3, kMostAsked)) break;
    if (std::none_of(among.begin() + static_cast<std::ptrdiff_t>(first), among.end(),
                     [&, own = i](std::size_t j) { return std::fabs(cosine(s, own, j)) > kInPlaceOf; }))
      among.push_back(i);
  }
  constexpr double kFarAbove = 1e3;
  return second_singular_value(s, among, counts, kFarAbove * needed) > needed;
}

RowCensus result(const CensusRow& row, const Candidates& asked, const Solution& found, const std::vector<double>& counts) {
  RowCensus c;
  c.token = row.row().token;
  c.request = row.row().req;
  c.moved = row.moved();
  c.heads = row.heads();
  c.equations = row.equations();
  const double needed = needed_change(found.system, counts);
  for (std::size_t i = 0; i < counts.size(); ++i) c.candidates += weighs(found.system, i, needed) ? 1 : 0;
  c.capped = asked.capped;
  int common = 0;
  for (const double count : counts) common = std::gcd(common, static_cast<int>(count));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (asked.units[i].right == 0 && counts[i] == 0) continue;
    c.units.push_back(asked.units[i]);
    c.counts.push_back(static_cast<int>(counts[i]) / std::max(common, 1));
  }
  return c;
}

/// Whether the unit's page or block fits worse than others, and how much: 0 for one that was read as often as expected.
std::vector<double> misfits(const Units& units, const Solution& found) {
  std::vector<double> list;
  for (std::size_t i = 0; i < units.size(); ++i)
    list.push_back(units[i].kind == Kind::sink ? 0 : std::fabs(found.counts[i] / found.unit - units[i].right));
  return list;
}

/// Whether two units lie in one page or block, and at one position where that changes scores.
bool at_one_place(const CensusRow& row, const CensusUnit& a, const CensusUnit& b) {
  return a.kind == b.kind && a.from == b.from && (!row.places_matter() || a.position == b.position);
}

/// Every slot of a page, or row of a block, as a unit of its own.
void split(const CensusRow& row, const CensusUnit& unit, const Units& right, Units& units) {
  const Facts& f = row.facts();
  const Row& r = row.row();
  const std::int64_t first = r.first_token - r.context_len();
  for (std::int64_t o = 0; o < f.page_size; ++o) {
    CensusUnit one{unit.kind, unit.from, {o}, unit.position, 0};
    const std::int64_t position = one.from + o - first;
    if (one.kind == Kind::fresh && (position < r.context_len() || position >= r.seq_len)) continue;
    for (const CensusUnit& u : right)
      if (at_one_place(row, u, one) && std::ranges::find(u.offsets, o) != u.offsets.end()) one.right += u.right;
    units.push_back(std::move(one));
  }
}

/// The keys of the pages that fit worst, and the other pages that were to be read as they are. `strangers`: also of pages that
/// were not to be read.
Candidates fine(const CensusRow& row, const Candidates& asked, const Units& right, const Solution& found, bool strangers) {
  const std::vector<double> misfit = misfits(asked.units, found);
  std::vector<std::size_t> order(asked.units.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return misfit[a] > misfit[b]; });
  const std::size_t most = std::min(kMostSingleKeys, row.equations() / 3);
  Candidates list{{}, asked.capped};
  Units divided;
  const auto is_divided = [&](const CensusUnit& unit) {
    return std::any_of(divided.begin(), divided.end(), [&](const auto& u) { return at_one_place(row, u, unit); });
  };
  for (const std::size_t i : order) {
    const CensusUnit& unit = asked.units[i];
    if (unit.kind == Kind::sink || is_divided(unit)) continue;
    if (unit.right == 0 && (!strangers || misfit[i] < kRead)) continue;
    if (list.units.size() + Facts::at(row.facts().page_size) > most) break;
    divided.push_back(unit);
    split(row, unit, right, list.units);
  }
  for (const CensusUnit& unit : right)
    if (unit.kind == Kind::sink || !is_divided(unit)) list.units.push_back(unit);
  return list;
}

/// Whether pages that were not to be read, and seem to be, hold what another page holds: which of the two was read is open.
bool have_twins(const Candidates& asked, const Solution& found) {
  const CensusSystem& s = found.system;
  for (std::size_t i = 0; i < asked.units.size(); ++i) {
    if (asked.units[i].right > 0 || !(found.counts[i] > kRead * found.unit)) continue;
    for (std::size_t j = 0; j < asked.units.size(); ++j)
      if (j != i && s.mass[j] > 0 && !found.light[j] && cosine(s, i, j) > kAlike) return true;
  }
  return false;
}

/// Whether every key is read once, as it is if one of its sides is the right one. Fills the pairs.
bool are_pairs(const CensusRow& row, RowCensus& census) {
  for (std::size_t i = 0; i < census.units.size(); ++i) {
    if (census.counts[i] == 0 && census.units[i].kind == Kind::sink) return false;
    if (census.counts[i] == 0) continue;
    bool once = census.counts[i] == 1;
    for (const auto& [position, place] : row.keys_of(census.units[i]))
      once = once && census.pairs.emplace(position, place).second;
    if (!once) return false;
  }
  return std::ranges::all_of(census.units, [&](const CensusUnit& unit) {
    return unit.right == 0 ||
           std::ranges::all_of(row.keys_of(unit), [&](const auto& k) { return census.pairs.contains(k.first); });
  });
}

struct Outcome {
  bool fits = false;  ///< whole numbers explain every element
  std::optional<RowCensus> census;
};

Outcome outcome(const CensusRow& row, const Candidates& asked, Solution& found) {
  double worst = 0;
  const std::optional<std::vector<double>> counts = rounded_counts(asked.units, found, worst);
  if (!counts) return {};
  Outcome o{true, result(row, asked, found, *counts)};
  o.census->worst = worst;
  if (!row.moved().both() && !are_pairs(row, *o.census)) return {};
  if (!o.census->differs() || !is_unique(asked.units, found, *counts)) o.census.reset();
  return o;
}

std::optional<RowCensus> census_of(const CensusRow& row) {
  const Units right = row.right_units();
  if (right.empty() || right.size() > std::min(kMostRight, row.equations() / 2)) return std::nullopt;
  const Candidates pages = coarse(row, right);
  Solution found = solved(row, pages.units);
  if (Outcome o = outcome(row, pages, found); o.fits) return o.census;
  for (const bool strangers : {false, true}) {
    if (strangers && have_twins(pages, found)) break;
    const Candidates keys = fine(row, pages, right, found, strangers);
    Solution again = solved(row, keys.units);
    if (Outcome o = outcome(row, keys, again); o.fits) return o.census;
  }
  return std::nullopt;
}

/// The right units with each slot of a page in place of each, in every page that ends before `end`.
Candidates slots_of_every_page(const CensusRow& row, const Units& right, std::int64_t end) {
  const std::int64_t size = row.facts().page_size;
  Candidates list;
  for (std::int64_t o = 0; o < size; ++o)
    for (std::int64_t from = 0; from < size; ++from) list.units.push_back({Kind::every_page, from, {o}, end, from == o ? 1 : 0});
  std::erase_if(list.units, [&](const CensusUnit& unit) { return row.keys_of(unit).empty(); });
  for (const CensusUnit& unit : right)
    if (unit.kind != Kind::cached || unit.position >= end) list.units.push_back(unit);
  return list;
}

/// Each visible slot in place of each.
Candidates slots_of_every_key(const Units& right) {
  Candidates list;
  Units slots;
  for (const CensusUnit& unit : right) {
    if (unit.kind != Kind::cached) list.units.push_back(unit);
    for (const std::int64_t o : unit.offsets)
      if (unit.kind == Kind::cached) slots.push_back({Kind::cached, unit.from, {o}, unit.position, unit.right});
  }
  for (const CensusUnit& key : slots)
    for (CensusUnit slot : slots) {
      const std::int64_t position = key.position + key.offsets.front() - slot.offsets.front();
      slot.right = slot.from == key.from && slot.position == position ? key.right : 0;
      slot.position = position;
      list.units.push_back(std::move(slot));
    }
  return list;
}

/// What of one side stands where: pages first, then the same slots in every page, then single keys.
std::optional<RowCensus> pairs_of(const CensusRow& row) {
  const Facts& f = row.facts();
  const Units right = row.right_units();
  std::int64_t keys = 0, end = 0;
  for (const CensusUnit& unit : right) {
    if (unit.kind != Kind::cached) continue;
    keys += static_cast<std::int64_t>(unit.offsets.size());
    end = std::max(end, unit.position + unit.offsets.back() + 1);
  }
  if (end == 0 || right.size() > std::min(kMostRight, row.equations() / 2)) return std::nullopt;
  const auto asked = [&](const Candidates& candidates) {
    Solution found = solved(row, candidates.units);
    return outcome(row, candidates, found);
  };
  // More unknown numbers than equations leave every answer open, and take long.
  const auto affordable = [&](std::int64_t units, std::int64_t keys_of_all) {
    return units <= static_cast<std::int64_t>(row.equations()) &&
           static_cast<double>(keys_of_all) * row.work_per_key() <= kMostColumnWork;
  };
  if (Outcome o = asked(coarse(row, right)); o.fits) return o.census;
  if (affordable(f.page_size * f.page_size, keys * f.page_size))
    for (const bool full_pages : {false, true}) {
      const std::int64_t last = full_pages ? end / f.page_size * f.page_size : end;
      if (last == 0 || (full_pages && last == end)) continue;
      if (Outcome o = asked(slots_of_every_page(row, right, last)); o.fits) return o.census;
    }
  if (affordable(keys * keys, keys * keys))
    if (Outcome o = asked(slots_of_every_key(right)); o.fits) return o.census;
  return std::nullopt;
}

using Heads = std::vector<const Compared*>;

/// A few of the heads, an even choice.
Heads some_of(const Facts& f, const Heads& heads) {
  const std::size_t most = std::max<std::size_t>(1, kMostEquations / Facts::at(f.v_head_dim));
  Heads some;
  for (std::size_t h = 0; h < heads.size(); h += semantics::ceil_div(heads.size(), most)) some.push_back(heads[h]);
  return some;
}

/// All heads of the rows whose census is taken: of each request its wrong row with most keys, those with fewer keys first.
std::vector<Heads> chosen_rows(const Facts& f, const Localisation& where) {
  std::map<std::int64_t, Heads> rows;  // request -> heads of one row
  const auto heads = Facts::at(f.num_q_heads);
  for (std::size_t first = 0; first < where.rows.size(); first += heads) {
    const std::span<const Compared> row = std::span(where.rows).subspan(first, heads);
    if (std::ranges::none_of(row, [](const Compared& c) { return c.wrong_dims > 0 && c.nonfinite == 0; })) continue;
    Heads all;
    for (const Compared& cell : row) all.push_back(&cell);
    rows[f.req_of(row.front().token)] = std::move(all);
  }
  std::vector<Heads> list;
  for (auto& [request, row] : rows) list.push_back(std::move(row));
  const auto keys = [&](const Heads& row) { return where.reference.num_keys[Facts::at(row.front()->reference_row)]; };
  std::stable_sort(list.begin(), list.end(), [&](const Heads& a, const Heads& b) { return keys(a) < keys(b); });
  if (list.size() > kRows) list.resize(kRows);
  return list;
}

}  // namespace

bool RowCensus::differs() const {
  for (std::size_t i = 0; i < units.size(); ++i)
    if (counts[i] != units[i].right) return true;
  return false;
}

std::vector<RowCensus> take_census(const Facts& facts, const Observed& observed, const Localisation& where,
                                   const TimeLimit& limit) {
  constexpr double kShare = 0.1;  // of the time; the search for a cause needs the rest
  std::vector<RowCensus> list;
  limit.part(kShare).run([&] {
    int silent = 0;
    for (const Heads& row : chosen_rows(facts, where)) {
      Heads wrong;
      std::copy_if(row.begin(), row.end(), std::back_inserter(wrong), [](const Compared* c) { return c->wrong_dims > 0; });
      std::optional<RowCensus> census = census_of(CensusRow(facts, observed, where, some_of(facts, row)));
      if (!census && wrong.size() < row.size()) census = census_of(CensusRow(facts, observed, where, some_of(facts, wrong)));
      if (census) list.push_back(std::move(*census));
      if (!census && ++silent == kSilent) break;
    }
  });
  return list;
}

std::vector<RowCensus> take_pairs(const Facts& facts, const Observed& observed, const Localisation& where,
                                  const TimeLimit& limit) {
  constexpr double kShare = 0.05;  // of the time
  std::vector<RowCensus> list;
  limit.part(kShare).run([&] {
    for (Heads row : chosen_rows(facts, where)) {
      std::erase_if(row, [](const Compared* c) { return c->wrong_dims == 0; });
      std::vector<RowCensus> found;
      for (const Sides moved : {kSideSets[2], kSideSets[1]})
        if (std::optional<RowCensus> pairs = pairs_of(CensusRow(facts, observed, where, some_of(facts, row), moved)))
          found.push_back(std::move(*pairs));
      if (found.empty()) break;  // other rows take as long and say as little
      list.insert(list.end(), found.begin(), found.end());
    }
  });
  return list;
}

}  // namespace quire::diagnose_detail
