// SPDX-License-Identifier: Apache-2.0
// A group of keys with another weight: a page, a tile or a split that is left out, counted twice, or weighed by another factor.
// The weight of each group of an opened cell follows from least squares in one unknown.
#include <algorithm>
#include <cmath>
#include <map>

#include "diagnose/mechanisms/cut.h"
#include "diagnose/mechanisms/mechanism.h"
#include "faults/families.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kWhole = 0.02;   // a coefficient this close to -1 or 1 is one
constexpr std::size_t kBest = 2;  // groups of one cell and one way to cut
const char* const kNextKeyGroup =
    "look at the loop over this group of keys: is it skipped, read twice, or merged with another group's weight?";

struct Found {
  std::int64_t index = 0, from_end = 0;
  double x = 0, left = 1;
};

std::vector<Found> search(const OpenCell& cell, const Cut& cut) {
  std::vector<Found> found;
  const double all = cell.error();
  const Extent extent{cell.from, cell.to, cell.row.seq_len, cell.row.req};
  const std::int64_t last = cut.last(extent);
  for (std::int64_t begin = cell.from; begin < cell.to;) {
    const std::int64_t index = cut.group(extent, begin);
    std::int64_t end = begin;
    while (end < cell.to && cut.group(extent, end) == index) ++end;
    const Partial part = partial(cell, begin, end);
    const OneCoefficient fit = fit_coefficient(cell, part.out, part.weight);
    if (cell.explained_by(fit.left * all)) found.push_back({index, last - index, fit.x, fit.left});
    begin = end;
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.left < b.left; });
  if (found.size() > kBest) found.resize(kBest);
  return found;
}

/// Selects groups of a row: the n-th from the start or the end, or one physical page.
using Selects = std::function<bool(std::int64_t index, std::int64_t from_end, std::int64_t page)>;

class Groups {
 public:
  explicit Groups(const Facts& f) : f_(f) {}

  void add(const OpenCell& cell, const Cut& cut, const Found& found) {
    const double x = std::fabs(found.x + 1) < kWhole ? -1 : std::fabs(found.x - 1) < kWhole ? 1 : found.x;
    const std::string what = x == -1 ? "leaves out" : x == 1 ? "counts twice" : "gives another weight to";
    const std::string factor = x == -1 || x == 1 ? "" : formatted(", times {:.4g}", 1 + x);
    const auto propose = [&](const std::string& which, const Selects& selects) { insert(what, which + factor, cut, x, selects); };
    propose(formatted("{} {}", cut.name, found.index),
            [index = found.index](std::int64_t i, std::int64_t, std::int64_t) { return i == index; });
    propose(found.from_end == 0 ? formatted("the last {}", cut.name) : formatted("{} {} from the end", cut.name, found.from_end),
            [from_end = found.from_end](std::int64_t, std::int64_t i, std::int64_t) { return i == from_end; });
    if (cut.name == "page")
      propose(formatted("physical page {}", f_.page(cell.row.req, found.index)),
              [page = f_.page(cell.row.req, found.index)](std::int64_t, std::int64_t, std::int64_t p) { return p == page; });
  }

  void propose(Proposals& list) {
    for (auto& [text, p] : proposals_) list.push_back(std::move(p));
  }

 private:
  void insert(const std::string& what, const std::string& which, const Cut& cut, double x, const Selects& selects) {
    if (proposals_.contains(what + which)) return;
    const Facts* f = &f_;
    const auto weigh = [f, cut, x, selects](const Row& row, std::vector<Key>& keys) {
      if (keys.empty()) return;
      const Extent extent{keys.front().position, keys.back().position + 1, row.seq_len, row.req};
      const std::int64_t last = cut.last(extent);
      for (Key& key : keys) {
        const std::int64_t index = cut.group(extent, key.position);
        if (selects(index, last - index, f->page(row.req, key.position / f->page_size))) key.weight *= 1 + x;
      }
      std::erase_if(keys, [](const Key& key) { return key.weight == 0; });
    };
    const char* const mechanism = cut.splits || (x == 1 && cut.name != "key") ? "split" : "key_range";
    proposals_.emplace(what + which,
                       Proposal{mechanism, what + " a group of keys", which, kNextKeyGroup, 1, keys_changed(weigh)});
  }

  const Facts& f_;
  std::map<std::string, Proposal> proposals_;
};

/// Keys that come back with a period: a lane of a vector, a stripe of tiles, the keys where tiles or splits meet.
struct Comb {
  std::int64_t period = 1, offset = 0, width = 1;
  const char* left_out = nullptr;  ///< words for a mistake that leaves these keys out, if there is one
  const char* twice = nullptr;     ///< likewise, for one that counts them twice
  std::string detail;
  bool inner = false;  ///< a border between two tiles: not the first tile's begin, nor the last one's end
  bool holds(const Row& row, std::int64_t k) const {
    if (k % period < offset || k % period >= offset + width) return false;
    return !inner || (offset == 0 ? k >= period : k < (row.seq_len - 1) / period * period);
  }
};

std::vector<Comb> combs(const Facts& f) {
  using N = std::int64_t;
  std::vector<Comb> list;
  for (const N modulus : {N{2}, N{4}, N{8}, N{16}, N{32}, f.page_size})
    for (N lane = 0; lane < modulus; ++lane)
      list.push_back(
          {modulus, lane, 1, "leaves out every m-th key", nullptr, formatted("keys at positions k % {} = {}", modulus, lane)});
  for (const N tile : {8, 16, 32, 64, 128})
    for (const N every : {2, 3, 4, 8})
      for (N at = 0; at < every; ++at)
        list.push_back({tile * every, tile * at, tile, "leaves out every m-th tile of keys", nullptr,
                        formatted("tiles t of {} keys with t % {} = {}", tile, every, at)});
  const char *const left_out = "leaves out keys where splits meet", *const twice = "counts keys twice where splits meet";
  for (N size = 16; size <= 512; size *= 2)
    for (N keys = 1; keys <= 32 && keys * 2 <= size; keys *= 2) {
      list.push_back({size, size - keys, keys, left_out, twice, formatted("the last {} of each tile of {}", keys, size), true});
      list.push_back({size, 0, keys, left_out, twice, formatted("the first {} of each tile of {}", keys, size), true});
    }
  return list;
}

void propose_combs(const Scene& scene, Proposals& list) {
  std::map<std::string, bool> known;
  const std::vector<Comb> all = combs(scene.facts);
  for (const OpenCell& cell : scene.cells)
    for (const Comb& comb : all) {
      if (cell.to <= comb.period && comb.inner) continue;
      Partial part{std::vector<double>(cell.dims(), 0.0), 0};
      for (std::int64_t k = cell.from / comb.period * comb.period + comb.offset; k < cell.to; k += comb.period) {
        if (!comb.holds(cell.row, k)) continue;
        const Partial one = partial(cell, std::max(k, cell.from), std::min(k + comb.width, cell.to));
        part.weight += one.weight;
        for (std::size_t d = 0; d < part.out.size(); ++d) part.out[d] += one.out[d];
      }
      const OneCoefficient fit = fit_coefficient(cell, part.out, part.weight);
      const char* const text = std::fabs(fit.x + 1) < kWhole   ? comb.left_out
                               : std::fabs(fit.x - 1) < kWhole ? comb.twice
                                                               : nullptr;
      if (text == nullptr || !cell.explained_by(fit.left * cell.error()) || !known.insert({text + comb.detail, true}).second)
        continue;
      list.push_back({text == comb.twice ? "split" : "key_range", text, comb.detail, kNextKeyGroup, 1,
                      keys_changed([comb, twice = text == comb.twice](const Row& row, std::vector<Key>& keys) {
                        for (Key& key : keys)
                          if (comb.holds(row, key.position)) key.weight *= twice ? 2 : 0;
                        std::erase_if(keys, [](const Key& key) { return key.weight == 0; });
                      })});
    }
}

/// Keys between two positions of a row, left out.
struct Middle {
  std::string detail;
  std::function<std::int64_t(const Row&)> from, to;
};

/// The end of the context in front of a whole tile, and all but the first and the last keys (Xiao et al. 2023, "StreamingLLM").
std::vector<Middle> middles() {
  std::vector<Middle> list;
  for (std::int64_t tile = 8; tile <= 512; tile *= 2)
    list.push_back({formatted("the end of the context, behind its last whole tile of {}", tile),
                    [tile](const Row& r) { return r.context_len() / tile * tile; },
                    [](const Row& r) { return r.context_len(); }});
  for (const std::int64_t first : {1, 2, 4, 8, 16, 32, 64, 128})
    for (std::int64_t last = 16; last <= 2048; last *= 2)
      list.push_back({formatted("all but the first {} and the last {}", first, last), [first](const Row&) { return first; },
                      [last](const Row& r) { return r.q_pos + 1 - last; }});
  return list;
}

void propose_middles(const Scene& scene, Proposals& list) {
  std::map<std::string, bool> known;
  const std::vector<Middle> all = middles();
  for (const OpenCell& cell : scene.cells)
    for (const Middle& middle : all) {
      const std::int64_t from = std::max(cell.from, middle.from(cell.row)), to = std::min(cell.to, middle.to(cell.row));
      if (from >= to || known.contains(middle.detail)) continue;
      const Partial part = partial(cell, from, to);
      const OneCoefficient fit = fit_coefficient(cell, part.out, part.weight);
      if (std::fabs(fit.x + 1) >= kWhole || !cell.explained_by(fit.left * cell.error())) continue;
      known.insert({middle.detail, true});
      list.push_back(
          {"key_range", "leaves out keys in the middle", middle.detail, kNextKeyGroup, 1,
           keys_dropped([middle](const Row& row, std::int64_t k) { return k >= middle.from(row) && k < middle.to(row); })});
    }
}

}  // namespace

void propose_key_group(const Scene& scene, Proposals& list) {
  Groups groups(scene.facts);
  const std::vector<Cut> all = cuts(scene.facts);
  for (const OpenCell& cell : scene.cells)
    for (const Cut& cut : all)
      for (const Found& found : search(cell, cut)) groups.add(cell, cut, found);
  groups.propose(list);
  propose_combs(scene, list);
  propose_middles(scene, list);
}

}  // namespace quire::diagnose_detail
