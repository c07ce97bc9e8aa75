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
  const Extent extent{cell.from, cell.to, cell.row.seq_len};
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
      const Extent extent{keys.front().position, keys.back().position + 1, row.seq_len};
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

/// Proposes that every m-th key is left out: one lane of a vector, one slot of each page.
void propose_lanes(const Scene& scene, Proposals& list) {
  std::map<std::pair<std::int64_t, std::int64_t>, bool> known;
  for (const OpenCell& cell : scene.cells)
    for (const std::int64_t modulus :
         {std::int64_t{2}, std::int64_t{4}, std::int64_t{8}, std::int64_t{16}, std::int64_t{32}, scene.facts.page_size})
      for (std::int64_t lane = 0; lane < modulus; ++lane) {
        Partial part{std::vector<double>(cell.dims(), 0.0), 0};
        for (std::int64_t k = cell.from; k < cell.to; ++k) {
          if (k % modulus != lane) continue;
          const Partial one = partial(cell, k, k + 1);
          part.weight += one.weight;
          for (std::size_t d = 0; d < part.out.size(); ++d) part.out[d] += one.out[d];
        }
        const OneCoefficient fit = fit_coefficient(cell, part.out, part.weight);
        if (!cell.explained_by(fit.left * cell.error()) || std::fabs(fit.x + 1) > kWhole ||
            !known.insert({{modulus, lane}, true}).second)
          continue;
        list.push_back({"key_range", "leaves out every m-th key", formatted("keys at positions k % {} = {}", modulus, lane),
                        kNextKeyGroup, 1,
                        keys_dropped([modulus, lane](const Row&, std::int64_t k) { return k % modulus == lane; })});
      }
}

/// The keys at the end of each tile, left out or counted twice: splits that leave gaps, or overlap.
void propose_ends_of_tiles(const Scene& scene, Proposals& list) {
  std::map<std::string, bool> known;
  for (const OpenCell& cell : scene.cells)
    for (const std::int64_t size : {std::int64_t{32}, std::int64_t{64}, std::int64_t{128}, std::int64_t{256}, std::int64_t{512}})
      for (const std::int64_t keys : {1, 2, 4, 8, 16, 32}) {
        if (keys * 2 > size || cell.to <= size) continue;
        const auto at_end = [=](std::int64_t k) { return k % size >= size - keys; };
        Partial part{std::vector<double>(cell.dims(), 0.0), 0};
        for (std::int64_t begin = cell.from / size * size + size - keys; begin < cell.to; begin += size) {
          const Partial one = partial(cell, std::max(begin, cell.from), std::min(begin + keys, cell.to));
          part.weight += one.weight;
          for (std::size_t d = 0; d < part.out.size(); ++d) part.out[d] += one.out[d];
        }
        const OneCoefficient fit = fit_coefficient(cell, part.out, part.weight);
        const bool left_out = std::fabs(fit.x + 1) < kWhole, twice = std::fabs(fit.x - 1) < kWhole;
        if (!cell.explained_by(fit.left * cell.error()) || (!left_out && !twice)) continue;
        const std::string detail = formatted("the last {} of each tile of {}", keys, size);
        if (!known.insert({detail + (twice ? "2" : "0"), true}).second) continue;
        list.push_back({"split", twice ? "counts keys twice where splits meet" : "leaves out keys where splits meet", detail,
                        kNextKeyGroup, 1, keys_changed([at_end, twice](const Row&, std::vector<Key>& all) {
                          if (!twice) std::erase_if(all, [&](const Key& key) { return at_end(key.position); });
                          for (Key& key : all) key.weight *= twice && at_end(key.position) ? 2 : 1;
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
  propose_lanes(scene, list);
  propose_ends_of_tiles(scene, list);
  propose_middles(scene, list);
}

}  // namespace quire::diagnose_detail
