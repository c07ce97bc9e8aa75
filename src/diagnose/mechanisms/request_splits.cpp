// SPDX-License-Identifier: Apache-2.0
// See request_splits.h. A prediction takes the weights of all keys, and the sums over runs of keys wherever a mistake multiplies
// all weights of a run by one factor.
#include "diagnose/mechanisms/request_splits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr std::int64_t kRun = 16;                          // keys; tiles and splits are multiples of it
constexpr std::size_t kMostRequestsSplit = 24;             // wrong requests; each costs an opened cell
constexpr std::int64_t kMostKeysSplit = 4096;              // visible keys of a cell: bounds the time
constexpr std::int64_t kNotSplit = std::int64_t{1} << 40;  // keys: more than any sequence has
constexpr double kOneFactor = 1e-9;                        // relative: factors of one run that differ by rounding alone

std::vector<std::int64_t> likely_sizes(std::int64_t seq_len) {
  constexpr std::int64_t kMostSplits = 16;
  std::set<std::int64_t> sizes;
  for (std::int64_t count = 2; count <= kMostSplits; ++count)
    for (const std::int64_t tile : {16, 32, 64, 128})
      if (const std::int64_t size = semantics::round_up(semantics::ceil_div(seq_len, count), tile); size < seq_len)
        sizes.insert(size);
  std::vector<std::int64_t> list(sizes.begin(), sizes.end());
  list.push_back(kNotSplit);
  return list;
}

CellOfRequest with_sums(OpenCell cell) {
  CellOfRequest c{std::move(cell), {}, {}, {}};
  c.sizes = likely_sizes(c.cell.row.seq_len);
  for (std::int64_t k = c.cell.from; k < c.cell.to; ++k)
    if (c.cell.sees(k)) c.keys.push_back({k, 1});
  for (std::int64_t begin = 0; begin < c.cell.to; begin += kRun) {
    const Partial run = partial(c.cell, begin, std::min(begin + kRun, c.cell.to));
    c.sums.insert(c.sums.end(), run.out.begin(), run.out.end());
  }
  return c;
}

/// Squared distance from what the cell shows to what a model of other keys or another softmax predicts.
double distance_if(const CellOfRequest& c, const Model& model) {
  const OpenCell& cell = c.cell;
  std::vector<Key> keys;
  std::vector<double> scores, p, out(cell.dims(), 0.0);
  model.keys(cell.row, keys);
  for (const Key& key : keys) {
    if (key.position >= cell.to || !cell.sees(key.position)) return std::numeric_limits<double>::infinity();
    scores.push_back(cell.scores[Facts::at(key.position)]);
  }
  model.softmax(model, cell.row, keys, scores, p);
  const auto factor = [&](std::size_t i) { return p[i] / cell.weights[Facts::at(keys[i].position)]; };
  for (std::size_t i = 0, seen = 0; i < keys.size();) {
    const std::int64_t run = keys[i].position / kRun;
    std::size_t end = i, seen_of_run = 0;
    while (end < keys.size() && keys[end].position / kRun == run) ++end;
    while (seen < c.keys.size() && c.keys[seen].position / kRun <= run)
      seen_of_run += c.keys[seen++].position / kRun == run ? 1 : 0;
    bool whole = seen_of_run == end - i;
    for (std::size_t j = i + 1; j < end; ++j)
      whole = whole && std::fabs(factor(j) - factor(i)) <= kOneFactor * std::fabs(factor(i));
    const double* sums = c.sums.data() + static_cast<std::size_t>(run) * out.size();
    for (std::size_t d = 0; whole && d < out.size(); ++d) out[d] += factor(i) * sums[d];
    for (std::size_t j = i; !whole && j < end; ++j)
      for (std::size_t d = 0; d < out.size(); ++d) out[d] += p[j] * cell.value(keys[j].position)[d];
    i = end;
  }
  const double distance = cell.distance(out);
  return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

}  // namespace

std::int64_t size_of_splits(const SplitSizes& sizes, std::int64_t req) {
  const auto own = sizes.find(req);
  return own == sizes.end() ? kNotSplit : own->second;
}

Cut cut_by_request(const SplitSizes& sizes) {
  return {text_of(sizes), [sizes](const Extent& e, std::int64_t k) { return k / size_of_splits(sizes, e.req); }, true, true};
}

std::string text_of(const SplitSizes& sizes) {
  std::set<std::int64_t> different;
  for (const auto& [req, size] : sizes) different.insert(size);
  if (different.size() == 1) return formatted("splits of {} keys", *different.begin());
  std::string text = "splits of ";
  for (const auto& [req, size] : sizes)
    if (text.size() < 80)
      text += formatted("{}{}{} in request {}", text.back() == ' ' ? "" : ", ", size, text.back() == ' ' ? " keys" : "", req);
  return text + (sizes.size() > 4 ? ", and so on" : "");
}

std::vector<CellOfRequest> cell_of_each_request(const Scene& scene) {
  std::map<std::int64_t, const Compared*> chosen;
  const auto keys = [&](const Compared* c) { return scene.where.reference.num_keys[Facts::at(c->reference_row)]; };
  for (const Compared* cell : scene.wrong) {
    if (cell->nonfinite > 0 || cell->wrong_dims == 0) continue;
    const Compared*& own = chosen[scene.facts.req_of(cell->token)];
    if (own == nullptr || std::pair(keys(cell), cell->worst_ratio) > std::pair(keys(own), own->worst_ratio)) own = cell;
  }
  std::vector<CellOfRequest> cells;
  if (chosen.size() > kMostRequestsSplit) return cells;
  for (const auto& [req, compared] : chosen) {
    OpenCell cell = open_cell(scene.facts, scene.observed, scene.where, *compared, kMostKeysSplit);
    if (cell.end == 0 || !(cell.error() > 0)) return {};
    cells.push_back(with_sums(std::move(cell)));
  }
  // A cell with a large error refutes most mistakes: it stands first.
  std::stable_sort(cells.begin(), cells.end(),
                   [](const CellOfRequest& a, const CellOfRequest& b) { return a.cell.error() > b.cell.error(); });
  return cells;
}

std::optional<SplitSizes> fitted_sizes(const Facts& facts, std::span<const CellOfRequest> cells,
                                       const std::function<Plant(const SplitSizes&)>& mistake) {
  SplitSizes sizes;
  for (const CellOfRequest& c : cells) {
    double least = std::numeric_limits<double>::infinity();
    std::int64_t best = 0;
    for (const std::int64_t size : c.sizes) {
      Model model(facts);
      mistake({{c.cell.row.req, size}})(model);
      if (const double left = distance_if(c, model); left < least) least = left, best = size;
    }
    if (best == 0 || !c.cell.explained_by(least)) return std::nullopt;
    if (best < kNotSplit) sizes[c.cell.row.req] = best;
  }
  if (sizes.empty()) return std::nullopt;
  return sizes;
}

}  // namespace quire::diagnose_detail
