// One physical page holds something else than it should: zeros, half of itself, K for V, rotated slots, another type. The page is
// the one that wrong cells read and right ones do not.
#include <algorithm>
#include <map>
#include <set>

#include "diagnose/mechanisms/mechanism.h"
#include "diagnose/mechanisms/side.h"
#include "text/formatted.h"

namespace quire::cause {
namespace {

using fault::Facts;
using fault::Model;
using fault::Place;
using fault::Row;
using fault::Side;

constexpr std::size_t kPagesTried = 3;
constexpr double kNearlyAll = 0.95;
const char* const kNext =
    "look at what wrote this page last: an append with a wrong slot, a page handed out twice, a copy that was cut short";

/// Pages by how well "the cell reads this page" tells wrong cells from right ones.
std::vector<std::int64_t> suspicious_pages(const Scene& scene) {
  const Facts& f = scene.facts;
  std::map<std::int64_t, std::int64_t> wrong, all;  // page -> cells that read it
  std::set<const Compared*> own(scene.wrong.begin(), scene.wrong.end());
  for (const Compared& cell : scene.where.rows) {
    const std::int64_t req = f.req_of(cell.token), q_pos = f.context_len(req) + cell.token - f.query_start_loc[Facts::at(req)];
    const bool is_wrong = own.contains(&cell);
    for (std::int64_t j = f.first_key(q_pos) / f.page_size; j <= q_pos / f.page_size; ++j) {
      const std::int64_t page = f.page(req, j);
      ++all[page];
      wrong[page] += is_wrong ? 1 : 0;
    }
  }
  std::vector<std::pair<double, std::int64_t>> ranked;
  for (const auto& [page, count] : wrong)
    if (static_cast<double>(count) >= kNearlyAll * static_cast<double>(scene.wrong.size()))
      ranked.emplace_back(-static_cast<double>(count) / static_cast<double>(all[page]), page);
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::int64_t> pages;
  for (const auto& [share, page] : ranked)
    if (pages.size() < kPagesTried) pages.push_back(page);
  return pages;
}

/// Changes the vectors read from one page.
struct Contents {
  std::string text;
  std::function<void(Side, const Place&, std::span<double>)> change;
};

void add_contents(std::int64_t page, const Contents& contents, Proposals& list) {
  for (const Sides sides : kSideSets) {
    Proposal p{"page_contents",
               formatted("finds other contents in a page ({})", sides.text()),
               formatted("page {}: {}", page, contents.text),
               kNext,
               1,
               {}};
    p.plant = [page, sides, change = contents.change](Model& m) {
      m.vector = [page, sides, change, before = m.vector](const Row& row, Side side, const Place& place, std::int64_t head,
                                                          std::span<double> v) {
        if (before) before(row, side, place, head, v);
        if (sides.has(side) && place.kind == Place::Kind::cache && place.page == page) change(side, place, v);
      };
    };
    list.push_back(std::move(p));
  }
}

/// Reads another slot of the page, or the other tensor.
struct Elsewhere {
  std::string text;
  std::function<std::int64_t(std::int64_t offset, std::int64_t size)> offset;
  bool other_tensor = false;
};

void add_elsewhere(const Facts& f, std::int64_t page, const Elsewhere& elsewhere, Proposals& list) {
  const Facts* facts = &f;
  for (const Sides sides : kSideSets) {
    Proposal p{"page_contents",
               formatted("finds other contents in a page ({})", sides.text()),
               formatted("page {}: {}", page, elsewhere.text),
               kNext,
               1,
               {}};
    p.plant = [facts, page, sides, elsewhere](Model& m) {
      m.vector = [=, before = m.vector](const Row& row, Side side, const Place& place, std::int64_t head, std::span<double> v) {
        if (before) before(row, side, place, head, v);
        if (!sides.has(side) || place.kind != Place::Kind::cache || place.page != page) return;
        const Side from = elsewhere.other_tensor ? (side == Side::key ? Side::value : Side::key) : side;
        const float* stored = facts->decoded.slot(from, page, elsewhere.offset(place.offset, facts->page_size), head);
        if (stored == nullptr) return;
        const double scale = Model(*facts).scale(side, place, head);
        for (std::size_t d = 0; d < v.size(); ++d) v[d] = scale * static_cast<double>(stored[d]);
      };
    };
    list.push_back(std::move(p));
  }
}

}  // namespace

void propose_page_contents(const Scene& scene, Proposals& list) {
  const std::int64_t size = scene.facts.page_size;
  const auto zero = [](std::span<double> v) { std::fill(v.begin(), v.end(), 0.0); };
  for (const std::int64_t page : suspicious_pages(scene)) {
    add_contents(page, {"zeros", [zero](Side, const Place&, std::span<double> v) { zero(v); }}, list);
    add_contents(page,
                 {"zeros in the first half of its slots",
                  [zero, size](Side, const Place& p, std::span<double> v) {
                    if (p.offset < size / 2) zero(v);
                  }},
                 list);
    add_contents(page,
                 {"zeros in the second half of its slots",
                  [zero, size](Side, const Place& p, std::span<double> v) {
                    if (p.offset >= size / 2) zero(v);
                  }},
                 list);
    add_contents(page,
                 {"the opposite sign",
                  [](Side, const Place&, std::span<double> v) {
                    for (double& value : v) value = -value;
                  }},
                 list);
    for (std::int64_t offset = 0; offset < std::min<std::int64_t>(size, 64); ++offset)
      add_contents(page,
                   {formatted("zeros in slot {}", offset),
                    [zero, offset](Side, const Place& p, std::span<double> v) {
                      if (p.offset == offset) zero(v);
                    }},
                   list);
    add_elsewhere(scene.facts, page,
                  {"K where V belongs, or V where K belongs", [](std::int64_t o, std::int64_t) { return o; }, true}, list);
    add_elsewhere(scene.facts, page, {"its slots in reverse order", [](std::int64_t o, std::int64_t n) { return n - 1 - o; }},
                  list);
    for (std::int64_t by = 1; by < std::min<std::int64_t>(size, 64); ++by)
      add_elsewhere(scene.facts, page,
                    {formatted("its slots rotated by {}", by), [by](std::int64_t o, std::int64_t n) { return (o + by) % n; }},
                    list);
  }
}

}  // namespace quire::cause
