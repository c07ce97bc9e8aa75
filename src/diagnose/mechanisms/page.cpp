// SPDX-License-Identifier: Apache-2.0
// A position read from another page or slot, for K, for V or for both: rules for the table and the slot, and one page in place of
// another, which is searched for among all pages of the cache.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "diagnose/mechanisms/mechanism.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kMostProducts = 3e8;  // multiply-adds of one search for a page: about 0.2 s
constexpr std::size_t kCellsSearched = 2;

using PlaceChange = std::function<void(const Facts&, const Row&, std::int64_t position, Place&)>;

Plant place_changed(Sides sides, PlaceChange change) {
  return cached_place_changed([=](const Model& model, const Row& row, Side side, std::int64_t k, Place& place) {
    if (sides.has(side)) change(*model.facts, row, k, place);
  });
}

struct PageRule {
  std::string detail;
  PlaceChange change;
};

std::vector<PageRule> table_rules() {
  std::vector<PageRule> rules;
  const auto column = [&](std::string detail, std::function<std::int64_t(std::int64_t j, std::int64_t last)> map) {
    rules.push_back({std::move(detail), [map = std::move(map)](const Facts& f, const Row& row, std::int64_t k, Place& place) {
                       const std::int64_t cached = f.batch.key.present() ? row.cached_len : row.seq_len;
                       const std::int64_t last = std::max<std::int64_t>(0, (std::min(cached, row.seq_len) - 1) / f.page_size);
                       place.page =
                           f.page(row.req, std::clamp<std::int64_t>(map(k / f.page_size, last), 0, f.max_pages_per_req - 1));
                     }});
  };
  using N = std::int64_t;
  for (const N by : {-2, -1, 1, 2})
    column(formatted("from the page {} {}", std::abs(by), by < 0 ? "before" : "after"),
           [by](N j, N) { return std::max<N>(0, j + by); });
  column("pages in reverse order", [](N j, N last) { return j <= last ? last - j : j; });
  column("every position from the first page", [](N, N) { return 0; });
  column("the last page from the first", [](N j, N last) { return j == last ? 0 : j; });
  column("the last page from the one before", [](N j, N last) { return j == last ? std::max<N>(0, j - 1) : j; });
  column("the first page from the second", [](N j, N) { return j == 0 ? 1 : j; });
  column("the first page from the last", [](N j, N last) { return j == 0 ? last : j; });
  column("pages exchanged in pairs", [](N j, N last) { return (j ^ 1) <= last ? j ^ 1 : j; });
  for (const N stages : {2, 3, 4})
    column(formatted("each group of {} pages from its first", stages), [stages](N j, N) { return j / stages * stages; });
  for (const N size : {8, 16, 24, 32, 48, 64, 128, 256})
    rules.push_back(
        {formatted("pages cut as if page_size were {}", size), [size](const Facts& f, const Row& row, N k, Place& place) {
           place.page = f.page(row.req, std::min(k / size, f.max_pages_per_req - 1));
           place.offset = k % size % f.page_size;
         }});
  for (const N size : {1, 4, 8, 16, 32, 64, 128, 256})
    rules.push_back({formatted("slots addressed as if page_size were {}: page * {} + k % {}", size, size, size),
                     [size](const Facts& f, const Row& row, N k, Place& place) {
                       const N slots = f.num_pages * f.page_size;  // What lies behind the cache is unknown: it begins again.
                       const N page = f.page(row.req, std::min(k / size, f.max_pages_per_req - 1));
                       const N slot = (std::max<N>(page, 0) * size + k % size) % slots;
                       place.page = slot / f.page_size;
                       place.offset = slot % f.page_size;
                     }});
  for (const N pages : {2, 4, 8})
    rules.push_back({formatted("tiles of {} pages read as if they lay in a row", pages),
                     [pages](const Facts& f, const Row& row, N k, Place& place) {
                       const N first = k / f.page_size / pages * pages;
                       place.page = std::min(f.num_pages - 1, f.page(row.req, first) + k / f.page_size - first);
                     }});
  for (const N tile : {32, 64, 128})
    rules.push_back({formatted("tiles of {} keys read as if they lay in a row", tile),
                     [tile](const Facts& f, const Row& row, N k, Place& place) {
                       const N first = k / tile * tile, offset = first % f.page_size + k - first;
                       place.page = std::min(f.num_pages - 1, f.page(row.req, first / f.page_size) + offset / f.page_size);
                       place.offset = offset % f.page_size;
                     }});
  for (const N by : {-2, -1, 1, 2})
    rules.push_back({formatted("page ids {:+}", by), [by](const Facts& f, const Row&, N, Place& place) {
                       place.page = std::clamp<N>(place.page + by, 0, f.num_pages - 1);
                     }});
  return rules;
}

PageRule shifted(std::int64_t by) {
  return {formatted("position k {:+}", by), [by](const Facts& f, const Row& row, std::int64_t k, Place& place) {
            const std::int64_t other = std::max<std::int64_t>(0, k + by);
            place.page = f.page(row.req, other / f.page_size);
            place.offset = other % f.page_size;
          }};
}

std::vector<PageRule> slot_rules(const Facts& facts) {
  std::vector<PageRule> rules;
  using N = std::int64_t;
  const auto add = [&](std::string detail, bool full_pages, std::function<N(N offset, N size)> map) {
    rules.push_back({std::move(detail), [full_pages, map = std::move(map)](const Facts& f, const Row& row, N k, Place& place) {
                       if (full_pages && (k / f.page_size + 1) * f.page_size > row.cached_len) return;
                       place.offset = map(place.offset, f.page_size);
                     }});
  };
  const auto slot = [&](std::string detail, std::function<N(N offset, N size)> map) {
    add(std::move(detail), false, std::move(map));
  };
  for (const N by : {1, 2, 4})
    for (const N shift : {by, facts.page_size - by})
      for (const bool full_pages : {false, true})
        if (by < facts.page_size)
          add(formatted("slots of each {}page rotated by {}", full_pages ? "full " : "", shift), full_pages,
              [shift](N o, N n) { return (o + shift) % n; });
  for (N size = 1; size < facts.page_size; ++size)
    if (facts.page_size <= 64 || size % 8 == 0)
      slot(formatted("the first {} slots of each page repeated", size), [size](N o, N) { return o % size; });
  slot("slots of each page in reverse order", [](N o, N n) { return n - 1 - o; });
  slot("slots exchanged in pairs", [](N o, N n) { return std::min(o ^ 1, n - 1); });
  slot("slot 0 of each page for all of its positions", [](N, N) { return 0; });
  for (const N by : {-1, 1}) rules.push_back(shifted(by));
  return rules;
}

void propose_rules(const std::vector<PageRule>& rules, Proposals& list) {
  for (const PageRule& rule : rules)
    for (const Sides sides : kSideSets) {
      list.push_back({"page", formatted("reads {} from another page or slot", sides.text()), rule.detail, kNextPage, 0,
                      place_changed(sides, rule.change)});
    }
}

/// A table that holds no more than its first columns, with what a kernel reads for later ones. The cells tell how many.
void propose_short_tables(const Scene& scene, Proposals& list) {
  struct Later {
    const char* text;
    std::function<std::int64_t(const Facts&, std::int64_t req, std::int64_t column, std::int64_t columns)> page;
  };
  using N = std::int64_t;
  const Later kinds[] = {{"later ones repeat the last of them", [](const Facts& f, N req, N, N n) { return f.page(req, n - 1); }},
                         {"later ones begin again", [](const Facts& f, N req, N j, N n) { return f.page(req, j % n); }},
                         {"later ones are physical page 0", [](const Facts&, N, N, N) { return 0; }}};
  const Sides sides = kSideSets[0];  // K and V share a table
  std::set<std::string> known;
  for (std::size_t i = 0; i < std::min(kCellsSearched, scene.cells.size()); ++i) {
    const OpenCell& cell = scene.cells[i];
    const N pages = (std::min(cell.to, cell.row.cached_len) - 1) / scene.facts.page_size;
    const N products = 3 * pages * (cell.to - cell.from) * (scene.facts.head_dim + scene.facts.v_head_dim);
    for (N n = 1; n <= pages && static_cast<double>(products) < kMostProducts; ++n)
      for (const Later& later : kinds) {
        const Plant plant = place_changed(sides, [n, page = later.page](const Facts& f, const Row& row, N k, Place& place) {
          if (k / f.page_size >= n) place.page = page(f, row.req, k / f.page_size, n);
        });
        std::string detail = formatted("block_table has {} columns, {}", n, later.text);
        if (!explains(scene.facts, cell, plant) || !known.insert(detail).second) continue;
        list.push_back(
            {"page", formatted("reads {} from another page or slot", sides.text()), std::move(detail), kNextPage, 1, plant});
      }
  }
}

/// Every position from one that lies a number of keys away. A cell tells the number.
void propose_shifts(const Scene& scene, Proposals& list) {
  constexpr std::int64_t kMost = 64;
  if (scene.cells.empty()) return;
  const OpenCell& cell = scene.cells.front();
  const std::int64_t products = 6 * kMost * (cell.to - cell.from) * (scene.facts.head_dim + scene.facts.v_head_dim);
  if (static_cast<double>(products) > kMostProducts) return;
  for (std::int64_t by = -kMost; by <= kMost; ++by)
    for (const Sides sides : kSideSets) {
      const PageRule rule = shifted(by);
      const Plant plant = place_changed(sides, rule.change);
      if (std::abs(by) > 1 && explains(scene.facts, cell, plant))
        list.push_back({"page", formatted("reads {} from another page or slot", sides.text()), rule.detail, kNextPage, 1, plant});
    }
}

/// Dot products of the cell's query with every slot of the cache, and where V lies.
class Search {
 public:
  Search(const Scene& scene, const OpenCell& cell)
      : f_(scene.facts), cell_(cell), truth_(scene.facts), kv_head_(cell.at.head / f_.group) {
    for (std::int64_t d = 0; d < f_.head_dim; ++d) query_.push_back(truth_.query(cell.row, d));
    const double seen = static_cast<double>(cell.to - cell.from + f_.page_size);
    affordable_ = static_cast<double>(f_.num_pages) * seen * static_cast<double>(f_.head_dim) * 2 < kMostProducts;
  }

  struct Found {
    double left = std::numeric_limits<double>::infinity();
    std::int64_t column = 0, page = 0;
  };

  /// The best page in place of another one, and the squared distance that it leaves.
  Found best(Sides sides) const {
    Found found;
    if (!affordable_) return found;
    for (std::int64_t j = cell_.from / f_.page_size; j * f_.page_size < cell_.to; ++j) {
      const std::int64_t from = std::max(cell_.from, j * f_.page_size), to = std::min(cell_.to, (j + 1) * f_.page_size);
      if (to > cell_.row.cached_len) continue;
      const std::int64_t own_page = f_.page(cell_.row.req, j);
      for (std::int64_t page = 0; page < f_.num_pages; ++page) {
        if (page == own_page) continue;
        const double left = with_page(sides, from, to, page);
        if (left < found.left) found = {left, j, page};
      }
    }
    return found;
  }

  /// Pairs of columns that explain the cell if their pages are exchanged.
  std::vector<std::pair<std::int64_t, std::int64_t>> exchanged(Sides sides) const {
    constexpr std::int64_t kMostColumns = 64;
    const std::int64_t first = semantics::ceil_div(cell_.from, f_.page_size);
    const std::int64_t last = std::min(cell_.to, cell_.row.cached_len) / f_.page_size;  // whole pages only
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    if (last - first > kMostColumns || last - first < 2) return found;
    std::vector<Partial> changes;  // effect of column i reading the page of column j
    for (std::int64_t i = first; i < last; ++i)
      for (std::int64_t j = first; j < last; ++j)
        changes.push_back(change(sides, i * f_.page_size, (i + 1) * f_.page_size, f_.page(cell_.row.req, j)));
    const std::int64_t n = last - first;
    std::vector<double> out(cell_.dims());
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = i + 1; j < n; ++j) {
        const Partial &one = changes[Facts::at(i * n + j)], &other = changes[Facts::at(j * n + i)];
        const double sum = cell_.denominator + one.weight + other.weight;
        for (std::size_t d = 0; d < out.size(); ++d)
          out[d] = (cell_.expected[d] * cell_.denominator + one.out[d] + other.out[d]) / sum;
        if (cell_.explained_by(cell_.distance(out))) found.emplace_back(first + i, first + j);
      }
    return found;
  }

 private:
  /// Change of the sums if positions [from, to) come from `page`.
  Partial change(Sides sides, std::int64_t from, std::int64_t to, std::int64_t page) const {
    Partial sum{std::vector<double>(cell_.dims(), 0.0), 0};
    for (std::int64_t k = from; k < to; ++k) {
      if (!cell_.sees(k)) continue;
      const std::int64_t offset = k % f_.page_size;
      const double before = cell_.weights[Facts::at(k)];
      const double weight = sides.key ? std::exp(score(page, offset, k) - cell_.max) : before;
      const float* stored = f_.decoded.slot(Side::value, page, offset, kv_head_);
      if (!std::isfinite(weight) || (sides.value && stored == nullptr)) {
        sum.weight = std::numeric_limits<double>::quiet_NaN();
        return sum;
      }
      const double scale = sides.value ? scale_of(Side::value, page, offset) : 1;
      const double* kept = cell_.value(k);
      sum.weight += weight - before;
      for (std::size_t d = 0; d < sum.out.size(); ++d)
        sum.out[d] += weight * (sides.value ? scale * static_cast<double>(stored[d]) : kept[d]) - before * kept[d];
    }
    return sum;
  }

  /// Squared distance if positions [from, to) come from `page`.
  double with_page(Sides sides, std::int64_t from, std::int64_t to, std::int64_t page) const {
    const Partial changed = change(sides, from, to, page);
    std::vector<double> out(cell_.dims());
    for (std::size_t d = 0; d < out.size(); ++d)
      out[d] = (cell_.expected[d] * cell_.denominator + changed.out[d]) / (cell_.denominator + changed.weight);
    const double distance = cell_.distance(out);
    return std::isnan(changed.weight) || std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
  }

  double scale_of(Side side, std::int64_t page, std::int64_t offset) const {
    return truth_.scale(side, Place{Place::Kind::cache, page, offset, 0}, kv_head_) * (side == Side::value ? f_.value_unit : 1);
  }

  double score(std::int64_t page, std::int64_t offset, std::int64_t k) const {
    const auto [at, fresh] = dots_.try_emplace(page);
    if (fresh)
      for (std::int64_t o = 0; o < f_.page_size; ++o) {
        const float* stored = f_.decoded.slot(Side::key, page, o, kv_head_);
        double dot = 0;
        for (std::size_t d = 0; stored != nullptr && d < query_.size(); ++d) dot += query_[d] * static_cast<double>(stored[d]);
        at->second.push_back(dot * scale_of(Side::key, page, o));
      }
    return truth_.score(truth_, cell_.row, k, at->second[Facts::at(offset)]);
  }

  const Facts& f_;
  const OpenCell& cell_;
  Model truth_;
  std::int64_t kv_head_;
  std::vector<double> query_;
  bool affordable_ = false;
  mutable std::map<std::int64_t, std::vector<double>> dots_;
};

/// Two pages of the same request exchanged: the change of each alone, added.
void propose_exchanged(const Scene& scene, const OpenCell& cell, const Search& search, Proposals& list) {
  const Facts& f = scene.facts;
  for (const Sides sides : kSideSets)
    for (const auto& [one, other] : search.exchanged(sides)) {
      const std::int64_t a = f.page(cell.row.req, one), b = f.page(cell.row.req, other);
      list.push_back({"page_contents", formatted("finds two pages exchanged ({})", sides.text()),
                      formatted("pages {} and {}", a, b), kNextPage, 1,
                      place_changed(sides, [a, b](const Facts&, const Row&, std::int64_t, Place& place) {
                        if (place.page == a || place.page == b) place.page = a + b - place.page;
                      })});
    }
}

void propose_found(const Scene& scene, const OpenCell& cell, Sides sides, const Search::Found& found, Proposals& list) {
  const Facts& f = scene.facts;
  const std::int64_t req = cell.row.req, column = found.column, page = found.page, own = f.page(req, column);
  const auto add = [&](std::string mechanism, std::string detail, const PlaceChange& change) {
    list.push_back({std::move(mechanism), formatted("reads {} of one page from another page", sides.text()), std::move(detail),
                    kNextPage, 1, place_changed(sides, change)});
  };
  add("page", formatted("logical page {} of request {} read from page {} instead of {}", column, req, page, own),
      [req, column, page](const Facts& facts, const Row& row, std::int64_t k, Place& place) {
        if (row.req == req && k / facts.page_size == column) place.page = page;
      });
  add("page_contents", formatted("pages {} and {} are exchanged", own, page),
      [own, page](const Facts&, const Row&, std::int64_t, Place& place) {
        if (place.page == own || place.page == page) place.page = own + page - place.page;
      });
  add("page_contents", formatted("page {} holds what page {} holds", own, page),
      [own, page](const Facts&, const Row&, std::int64_t, Place& place) {
        if (place.page == own) place.page = page;
      });
}

}  // namespace

void propose_page(const Scene& scene, Proposals& list) {
  propose_rules(table_rules(), list);
  propose_rules(slot_rules(scene.facts), list);
  propose_short_tables(scene, list);
  propose_shifts(scene, list);
  std::size_t searched = 0;
  for (const OpenCell& cell : scene.cells) {
    if (searched == kCellsSearched) break;
    ++searched;
    const Search search(scene, cell);
    propose_exchanged(scene, cell, search, list);
    for (const Sides sides : kSideSets)
      if (const Search::Found found = search.best(sides); cell.explained_by(found.left))
        propose_found(scene, cell, sides, found, list);
  }
}

}  // namespace quire::diagnose_detail
