// SPDX-License-Identifier: Apache-2.0
// A finite number stands in for -infinity: the running maximum starts at it, so that scores far below weigh 0 in f32, or hidden
// keys have it as their score, so that rows whose scores lie near or below it see them. The number is fitted to opened cells.
#include <algorithm>
#include <cmath>
#include <optional>

#include "diagnose/mechanisms/hidden_keys.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// exp() of less is below the least normal f32, which GPUs flush to 0. A wrong value shifts the fitted number by the difference.
constexpr double kLeastExponent = -87.336;
constexpr double kSameStart = 1e-4;             // relative: lse is f32
constexpr double kSameScore = 0.02;             // natural units of a score: what rounding of the output leaves of a fitted one
constexpr double kAllHidden = 0.999;            // share of hidden keys in an output from which their score has no upper bound
constexpr double kNoneHidden = 1e-9;            // share below which the cell says nothing of it
constexpr std::size_t kCellsTriedFinite = 3;    // more find nothing that these do not
constexpr std::size_t kCellsThatBound = 256;    // wrong cells opened once the first ones fit; more take time
constexpr std::int64_t kMostKeysFinite = 2048;  // visible keys of such a cell: bounds the time
const char* const kNextStart = "start the running maximum at -infinity, and take exp(score - 0) while it is -infinity";

/// Numbers that kernels use for -infinity, in units of a scaled score and of q . K.
std::vector<double> stand_ins(const Facts& f) {
  const Model truth(f);
  const double scale = f.num_tokens > 0 ? truth.softmax_scale(truth.row(0, 0)) : 1;
  std::vector<double> list;
  for (const double number : {-1e4, -3e4, -5e4, -65504.0})
    for (const double factor : {1.0, scale}) list.push_back(number * factor);
  return list;
}

/// Ways to write a row whose weights are all 0: zeros with the start of the maximum as lse, zeros with -inf, or NaN with -inf.
enum class Empty { start_as_lse, no_lse, nan };

Plant maximum_starts_at(double start, Empty empty) {
  return [start, empty](Model& m) {
    m.softmax = [start, empty, before = m.softmax](const Model& model, const Row& row, std::span<const Key> keys,
                                                   std::span<const double> scores, std::vector<double>& p) {
      const double lse = before(model, row, keys, scores, p), sink = model.sink(row);
      if (keys.empty() || faults_detail::largest(scores, sink) >= start) return lse;
      const auto weight = [start](double score) { return score - start < kLeastExponent ? 0 : std::exp(score - start); };
      double sum = weight(sink);
      for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] = keys[i].weight * weight(scores[i]);
      for (double& share : p) share = sum > 0 ? share / sum : empty == Empty::nan ? faults_detail::kNaN : 0;
      return sum > 0 ? start + std::log(sum) : empty == Empty::start_as_lse ? start : -kInfinity;
    };
  };
}

/// Scores of which some are kept: the least kept one, and the largest dropped one.
struct Threshold {
  double above = -kInfinity, up_to = kInfinity;
};

/// Threshold above which a cell's keys alone give what the cell shows, if there is one.
std::optional<Threshold> threshold_of(const OpenCell& cell) {
  std::vector<std::int64_t> keys;
  for (std::int64_t k = cell.from; k < cell.to; ++k)
    if (cell.sees(k)) keys.push_back(k);
  const auto score = [&](std::int64_t k) { return cell.scores[Facts::at(k)]; };
  std::stable_sort(keys.begin(), keys.end(), [&](std::int64_t a, std::int64_t b) { return score(a) > score(b); });
  std::vector<double> sums(cell.dims()), out(cell.dims());
  double sum = 0, least = kInfinity;
  Threshold best;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    for (std::size_t d = 0; d < out.size(); ++d) out[d] = sum > 0 ? sums[d] / sum : 0;
    if (const double left = cell.distance(out); left < least)
      least = left, best = {score(keys[n]), n == 0 ? kInfinity : score(keys[n - 1])};
    // Relative to the largest score, weights of the rest add nothing once they underflow.
    const double weight = std::exp(score(keys[n]) - score(keys[0]));
    sum += weight;
    for (std::size_t d = 0; d < out.size(); ++d) sums[d] += weight * cell.value(keys[n])[d];
  }
  return !keys.empty() && cell.explained_by(least) ? std::optional(best) : std::nullopt;
}

/// The lse of wrong rows of zeros, if it is one number.
std::optional<double> lse_of_zeros(const Scene& scene) {
  std::vector<double> list;
  for (const Compared* cell : scene.wrong)
    if (cell->wrong_lse && cell->bytes == CellBytes::zeros) list.push_back(scene.observed.lse_at(cell->token, cell->head));
  if (!all_same(list, kSameStart) || !std::isfinite(list.front())) return std::nullopt;
  return median(std::move(list));
}

void propose_start(const Scene& scene, Proposals& list) {
  Threshold all;
  const auto narrow = [&all](const Threshold& own) { all = {std::max(all.above, own.above), std::min(all.up_to, own.up_to)}; };
  for (const OpenCell& cell : scene.cells) {
    const std::optional<Threshold> own = threshold_of(cell);
    if (!own) return;
    narrow(*own);
  }
  // The scores of a cell lie far apart: many cells bound the number well.
  for (std::size_t i = 0; i < std::min(kCellsThatBound, scene.wrong.size()) && !scene.cells.empty(); ++i)
    if (const OpenCell cell = open_cell(scene.facts, scene.observed, scene.where, *scene.wrong[i], kMostKeysFinite); cell.end > 0)
      if (const std::optional<Threshold> own = threshold_of(cell)) narrow(*own);
  if (all.above >= all.up_to || scene.wrong.empty()) return;
  std::vector<double> starts;
  const double above = all.above - kLeastExponent, up_to = all.up_to - kLeastExponent;
  if (const std::optional<double> lse = lse_of_zeros(scene)) starts.push_back(*lse);
  if (std::isfinite(all.above + all.up_to)) starts.push_back((above + up_to) / 2);
  for (const double number : stand_ins(scene.facts))
    if (number > above && number <= up_to) starts.push_back(number);
  for (const double start : starts)
    for (const Empty empty : {Empty::start_as_lse, Empty::no_lse, Empty::nan})
      list.push_back({"normalisation", "starts the running maximum at a finite number in place of -infinity",
                      formatted("{:.5g}{}", start, empty == Empty::nan ? ", and divides by 0 where all weights are 0" : ""),
                      kNextStart, 1, maximum_starts_at(start, empty)});
}

/// The score of the hidden keys that a cell shows; NaN if it shows none, infinite if it is far above the row's own scores.
double hidden_score(const OpenCell& cell, const HiddenKeys& hidden, const Facts& f) {
  std::vector<double> mean(cell.dims());
  double count = 0, moved = 0, square = 0;
  const std::int64_t last = std::min(hidden.end(cell.row), cell.end);
  for (std::int64_t k = hidden.first(f, cell.row); k < last; ++k) {
    if (f.sees(cell.row, k)) continue;
    ++count;
    for (std::size_t d = 0; d < mean.size(); ++d) mean[d] += cell.value(k)[d];
  }
  if (count == 0) return faults_detail::kNaN;
  // out = (1 - share) expected + share mean
  std::vector<double> out(cell.dims());
  for (std::size_t d = 0; d < mean.size(); ++d) {
    if (cell.inverse[d] == 0) continue;
    const double towards = (mean[d] / count - cell.expected[d]) * cell.inverse[d];
    moved += (cell.observed[d] - cell.expected[d]) * cell.inverse[d] * towards;
    square += towards * towards;
  }
  const double share = square > 0 ? moved / square : 0;
  for (std::size_t d = 0; d < mean.size(); ++d) out[d] = cell.expected[d] + share * (mean[d] / count - cell.expected[d]);
  if (!(share > kNoneHidden) || !cell.explained_by(cell.distance(out))) return faults_detail::kNaN;
  return share > kAllHidden ? kInfinity : cell.max + std::log(share * cell.denominator / ((1 - share) * count));
}

void propose_scores(const Scene& scene, Proposals& list) {
  for (const HiddenKeys& hidden : hidden_keys(scene.facts)) {
    std::vector<double> scores;
    bool fits = !scene.cells.empty(), far_above = false;
    for (std::size_t i = 0; fits && i < std::min(kCellsTriedFinite, scene.cells.size()); ++i) {
      const double score = hidden_score(scene.cells[i], hidden, scene.facts);
      fits = !std::isnan(score);
      if (std::isfinite(score)) scores.push_back(score);
      far_above = far_above || std::isinf(score);
    }
    if (!fits) continue;
    const double middle = median(scores);
    fits = std::ranges::all_of(scores, [middle](double score) { return std::fabs(score - middle) <= kSameScore; });
    std::vector<double> numbers = stand_ins(scene.facts);
    if (!scores.empty()) numbers = {middle};
    for (const double number : numbers)
      if (fits && (far_above || !scores.empty()))
        list.push_back({"mask", "gives hidden keys a finite score in place of -infinity",
                        formatted("{:.5g}, {}", number, hidden.text), kNextHiddenKeys, 1,
                        [hidden, number](Model& m) { plant_scores(m, hidden, number); }});
  }
}

}  // namespace

void propose_finite_infinity(const Scene& scene, Proposals& list) {
  propose_start(scene, list);
  propose_scores(scene, list);
}

}  // namespace quire::diagnose_detail
