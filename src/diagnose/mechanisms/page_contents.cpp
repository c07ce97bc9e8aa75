// SPDX-License-Identifier: Apache-2.0
// Mechanism: a physical page holds wrong contents: zeros, half of itself, K for V, rotated slots, another type. The search tries
// every content for every page that an opened cell reads; it recomputes only the sums over that page.
#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::size_t kCellsSearchedPageContents = 2;
constexpr double kMostProductsPageContents = 4e8;  // multiply-adds of one search: about 0.3 s
const char* const kNextPageContents =
    "look at what wrote this page last: an append with a wrong slot, a page handed out twice, a copy that was cut short";

/// Vector that is read in place of a K or V vector of the page, as a change of the stored and scaled vector.
struct Contents {
  std::string text;
  std::function<void(const Facts&, Side, const Place&, std::int64_t kv_head, std::span<double>)> change;
};

Contents of_slot(std::string text, std::function<std::int64_t(std::int64_t offset, std::int64_t size)> other,
                 bool other_tensor = false) {
  return {std::move(text), [other = std::move(other), other_tensor](const Facts& f, Side side, const Place& place,
                                                                    std::int64_t head, std::span<double> v) {
            const Side from = other_tensor ? (side == Side::key ? Side::value : Side::key) : side;
            const float* stored = f.decoded.slot(from, place.page, other(place.offset, f.page_size), head);
            const double scale = Model(f).scale(side, place, head);
            const std::size_t dims = std::min(v.size(), Facts::at(f.dims_of(from)));
            for (std::size_t d = 0; stored != nullptr && d < dims; ++d) v[d] = scale * static_cast<double>(stored[d]);
          }};
}

Contents zeros(std::string text, std::function<bool(std::int64_t offset, std::int64_t size)> where) {
  return {std::move(text),
          [where = std::move(where)](const Facts& f, Side, const Place& place, std::int64_t, std::span<double> v) {
            if (where(place.offset, f.page_size)) std::fill(v.begin(), v.end(), 0.0);
          }};
}

/// The codes of the page read as another type of the same size.
Contents of_type(DType type) {
  return {"codes of " + std::string(name(type)),
          [type](const Facts& f, Side side, const Place& place, std::int64_t head, std::span<double> v) {
            const DType stored = side == Side::key ? f.cache.k.dtype : f.cache.v.dtype;
            if (itemsize(stored) != itemsize(type) || is_four_bit(stored)) return;  // elements of another size lie elsewhere
            faults_detail::load_codes(f, type, side, place, head, v);
            const double scale = Model(f).scale(side, place, head);
            for (double& value : v) value *= scale;
          }};
}

std::vector<Contents> contents(const Facts& f) {
  using N = std::int64_t;
  std::vector<Contents> list;
  list.push_back(zeros("zeros", [](N, N) { return true; }));
  list.push_back(zeros("zeros in the first half of its slots", [](N o, N n) { return o < n / 2; }));
  list.push_back(zeros("zeros in the second half of its slots", [](N o, N n) { return o >= n / 2; }));
  list.push_back({"the opposite sign", [](const Facts&, Side, const Place&, N, std::span<double> v) {
                    for (double& value : v) value = -value;
                  }});
  for (const double factor : {0.125, 0.25, 0.5, 2.0, 4.0, 8.0, 16.0})
    list.push_back(
        {formatted("its elements times {:g}", factor), [factor](const Facts&, Side, const Place&, N, std::span<double> v) {
           for (double& value : v) value *= factor;
         }});
  for (const double factor : {0.125, 0.25, 0.5, 2.0, 4.0, 8.0, 16.0})
    if (is_code(f.cache.k.dtype) || is_code(f.cache.v.dtype))
      list.push_back({formatted("its elements times {:g}, in the cache's type", factor),
                      [factor](const Facts& facts, Side side, const Place& place, N head, std::span<double> v) {
                        const double scale = Model(facts).scale(side, place, head);
                        const DType type = side == Side::key ? facts.cache.k.dtype : facts.cache.v.dtype;
                        if (is_four_bit(type)) return;
                        for (double& value : v) value = scale * faults_detail::rounded(type, value / scale * factor);
                      }});
  list.push_back(of_slot("K where V belongs, or V where K belongs", [](N o, N) { return o; }, /*other_tensor=*/true));
  list.push_back(of_slot("its slots in reverse order", [](N o, N n) { return n - 1 - o; }));
  list.push_back(of_slot("slot 0 in all of its slots", [](N, N) { return 0; }));
  const std::int64_t most = std::min<std::int64_t>(f.page_size, 64);
  for (N by = 1; by < most; ++by)
    list.push_back(of_slot(formatted("its slots rotated by {}", by), [by](N o, N n) { return (o + by) % n; }));
  for (N slot = 0; slot < most; ++slot)
    list.push_back(zeros(formatted("zeros in slot {}", slot), [slot](N o, N) { return o == slot; }));
  for (const DType type : {DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e4m3fnuz, DType::fp8_e5m2, DType::fp8_e5m2fnuz})
    if ((type != f.cache.k.dtype && itemsize(type) == itemsize(f.cache.k.dtype)) ||
        (type != f.cache.v.dtype && itemsize(type) == itemsize(f.cache.v.dtype)))
      list.push_back(of_type(type));
  return list;
}

/// Search over contents of one page of one opened cell.
class ContentSearch {
 public:
  ContentSearch(const Scene& scene, const OpenCell& cell)
      : f_(scene.facts), cell_(cell), truth_(scene.facts), value_(cell.dims()) {
    for (std::int64_t d = 0; d < f_.head_dim; ++d) query_.push_back(truth_.query(cell.row, d));
    key_.resize(query_.size());
  }

  /// Squared distance to the observed numbers if the page of column j holds this.
  double left(std::int64_t j, const Partial& own, Sides sides, const Contents& contents) {
    const std::int64_t from = std::max(cell_.from, j * f_.page_size), to = std::min(cell_.to, (j + 1) * f_.page_size);
    std::vector<double> out(cell_.dims());
    double sum = cell_.denominator - own.weight;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] = cell_.expected[d] * cell_.denominator - own.out[d];
    for (std::int64_t k = from; k < to; ++k) {
      if (!cell_.sees(k)) continue;
      const Place place = truth_.place(truth_, cell_.row, Side::key, k);
      double weight = cell_.weights[Facts::at(k)];
      if (sides.key) {
        read(Side::key, k, place, contents, key_);
        double dot = 0;
        for (std::size_t d = 0; d < query_.size(); ++d) dot += query_[d] * key_[d];
        weight = std::exp(truth_.score(truth_, cell_.row, k, dot) - cell_.max);
      }
      if (sides.value) {
        read(Side::value, k, place, contents, value_);
      } else {
        std::copy(cell_.value(k), cell_.value(k) + value_.size(), value_.begin());
      }
      sum += weight;
      for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * value_[d];
    }
    for (double& value : out) value /= sum;
    const double distance = cell_.distance(out);
    return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
  }

 private:
  void read(Side side, std::int64_t k, const Place& place, const Contents& contents, std::vector<double>& vector) {
    const std::int64_t head = cell_.at.head / f_.group;
    load_vector(truth_, cell_.row, side, k, scratch_, vector);
    if (place.kind == Place::Kind::cache) contents.change(f_, side, place, head, vector);
  }

  const Facts& f_;
  const OpenCell& cell_;
  Model truth_;
  std::vector<double> query_, key_, value_;
  std::vector<std::int64_t> scratch_;
};

void propose(std::int64_t page, Sides sides, const Contents& contents, Proposals& list) {
  list.push_back({"page_contents", formatted("finds other contents in a page ({})", sides.text()),
                  formatted("page {}: {}", page, contents.text), kNextPageContents, 1,
                  [page, sides, change = contents.change](Model& m) {
                    m.vector = [page, sides, change, f = m.facts, before = m.vector](
                                   const Row& row, Side side, const Place& place, std::int64_t head, std::span<double> v) {
                      if (before) before(row, side, place, head, v);
                      if (sides.has(side) && place.kind == Place::Kind::cache && place.page == page)
                        change(*f, side, place, head, v);
                    };
                  }});
}

void search_cell(const Scene& scene, const OpenCell& cell, const std::vector<Contents>& all, Proposals& list) {
  const Facts& f = scene.facts;
  const double cost =
      static_cast<double>((cell.to - cell.from + f.page_size) * f.head_dim * 4) * static_cast<double>(all.size() * 3);
  if (cost > kMostProductsPageContents) return;
  ContentSearch search(scene, cell);
  for (std::int64_t j = cell.from / f.page_size; j * f.page_size < cell.to; ++j) {
    if (std::max(cell.from, j * f.page_size) >= cell.row.cached_len) continue;
    const Partial own = partial(cell, std::max(cell.from, j * f.page_size), std::min(cell.to, (j + 1) * f.page_size));
    for (const Contents& one : all)
      for (const Sides sides : kSideSets)
        if (cell.explained_by(search.left(j, own, sides, one))) propose(f.page(cell.row.req, j), sides, one, list);
  }
}

/// Positions that this step wrote read as zeros: the append came too late, or went elsewhere.
void propose_new_tokens(Proposals& list) {
  struct New {
    std::string text;
    std::function<bool(const Row&, std::int64_t k)> is;
  };
  for (const New& one :
       {New{"the row's own slot", [](const Row& r, std::int64_t k) { return k == r.q_pos; }},
        New{"the slots of this step's tokens", [](const Row& r, std::int64_t k) { return k >= r.context_len(); }},
        New{"the slot of the last token", [](const Row& r, std::int64_t k) { return k == r.seq_len - 1; }}})
    for (const Sides sides : kSideSets) {
      list.push_back({"page_contents", formatted("finds zeros in {} ({})", one.text, sides.text()), "", kNextPageContents, 0,
                      function_changed(&Model::place, [sides, is = one.is](const auto& before, const Model& model, const Row& row,
                                                                           Side side, std::int64_t k) {
                        Place place = before(model, row, side, k);
                        if (sides.has(side) && is(row, k)) place.kind = Place::Kind::zero;
                        return place;
                      })});
    }
}

}  // namespace

void propose_page_contents(const Scene& scene, Proposals& list) {
  propose_new_tokens(list);
  const std::vector<Contents> all = contents(scene.facts);
  std::size_t searched = 0;
  for (const OpenCell& cell : scene.cells) {
    if (searched++ == kCellsSearchedPageContents) break;
    search_cell(scene, cell, all, list);
  }
}

}  // namespace quire::diagnose_detail
