// SPDX-License-Identifier: Apache-2.0
// Softmax weights rounded to a narrow type before their product with V. The rounded value depends on the maximum that the kernel
// knows at that time: the maximum of the row, or of the tiles that a split has seen so far.
#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kNegInfRoundedWeights = -std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostKeysRoundedWeights = 2048;  // most keys of a cell that is opened to distinguish tiles and splits
// Ways to step through the keys that are proposed for each type: the best two, and more that fit these cells equally well.
constexpr std::size_t kBestRoundedWeights = 2, kMost = 6;
constexpr double kAsGood = 0.02;  // share of the error
const char* const kNextRoundedWeights = "keep softmax weights in f32, or in a type as fine as the query's, until they have met V";

/// Order in which a kernel takes the keys of a sequence: splits of equal length, each in tiles. tile 0: a split is one tile.
struct Steps {
  std::int64_t splits = 1, tile = 0;
  bool from_first = false;  ///< tiles begin at the row's first visible key, not at position 0

  std::string text() const {
    if (splits == 1 && tile == 0) return "the row's maximum";
    return formatted("the maximum so far{}{}{}", tile == 0 ? "" : formatted(", tiles of {}", tile),
                     from_first ? " from the row's first key on" : "", splits == 1 ? "" : formatted(", {} splits", splits));
  }
  std::int64_t split_of(std::int64_t position, std::int64_t seq_len) const {
    std::int64_t split = position * splits / seq_len;
    while ((split + 1) * seq_len / splits <= position) ++split;  // split i begins at floor(i seq_len / splits), and may be empty
    return split;
  }
  /// First position behind the tile of `position`.
  std::int64_t tile_end(std::int64_t position, std::int64_t first, std::int64_t seq_len) const {
    const std::int64_t split = split_of(position, seq_len);
    const std::int64_t begin = split * seq_len / splits, end = (split + 1) * seq_len / splits;
    const std::int64_t origin = from_first ? std::max(begin, first) : begin;
    return tile == 0 ? end : std::min(end, origin + ((position - origin) / tile + 1) * tile);
  }
};

struct Way {
  DType type = DType::f16;
  double steps_of_one = 0;  ///< not 0: whole multiples of 1 / steps_of_one, as an integer type holds them
  Steps steps;
  bool rounded_sum = false;  ///< the denominator is the sum of the rounded weights, not of the exact ones
  double factor = 1;         ///< of weights while they are rounded: a type's range is used better
  double round(double weight) const {
    return steps_of_one > 0 ? std::nearbyint(weight * steps_of_one) / steps_of_one : rounded(type, weight * factor) / factor;
  }
  std::string text() const {
    if (steps_of_one > 0) return formatted("whole multiples of 1 / {:g}", steps_of_one);
    return formatted("{}{}", name(type), factor == 1 ? "" : formatted(" after a factor of {:g}", factor));
  }
};

/// The weights of ascending positions, rounded and divided; exp(lse - largest) is the exact denominator.
template <typename Position>
void round_weights(const Way& way, std::span<const double> scores, Position position, std::int64_t seq_len, double largest,
                   double denominator, std::vector<double>& p) {
  double running = kNegInfRoundedWeights, sum = denominator;
  for (std::size_t i = 0; i < scores.size();) {
    const std::int64_t at = position(i), end_at = way.steps.tile_end(at, position(0), seq_len);
    if (i > 0 && way.steps.split_of(at, seq_len) != way.steps.split_of(position(i - 1), seq_len)) running = kNegInfRoundedWeights;
    std::size_t end = i;
    while (end < scores.size() && position(end) < end_at) running = std::max(running, scores[end++]);
    for (; i < end; ++i) {
      const double weight = scores[i] == kNegInfRoundedWeights ? 0 : std::exp(scores[i] - running),
                   scale = std::exp(running - largest);
      p[i] = way.round(weight) * scale;
      if (way.rounded_sum) sum += p[i] - weight * scale;
    }
  }
  for (double& weight : p) weight /= way.rounded_sum ? sum : denominator;
}

void plant(Model& m, const Way& way) {
  m.softmax = [way, before = m.softmax](const Model& model, const Row& row, std::span<const Key> keys,
                                        std::span<const double> scores, std::vector<double>& p) {
    const double lse = before(model, row, keys, scores, p), largest = faults_detail::largest(scores, model.sink(row));
    if (keys.empty() || !std::isfinite(lse) || row.seq_len <= 0) return lse;
    round_weights(way, scores, [&](std::size_t i) { return keys[i].position; }, row.seq_len, largest, std::exp(lse - largest), p);
    return lse;
  };
}

double distance_of(const OpenCell& cell, const Way& way) {
  std::vector<double> p, scores, out(cell.dims(), 0.0);
  std::vector<std::int64_t> keys;
  for (std::int64_t k = cell.from; k < cell.to; ++k) {
    if (!cell.sees(k)) continue;
    keys.push_back(k);
    scores.push_back(cell.scores[Facts::at(k)]);
  }
  p.resize(keys.size());
  round_weights(way, scores, [&](std::size_t i) { return keys[i]; }, cell.row.seq_len, cell.max, cell.denominator, p);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double* v = cell.value(keys[i]);
    if (p[i] == 0) continue;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += p[i] * v[d];
  }
  return cell.distance(out);
}

std::vector<Steps> all_steps(const Facts& f) {
  std::vector<Steps> list{{}};
  for (const std::int64_t splits : {1, 2, 3, 4, 8})
    for (const std::int64_t tile : {0, 16, 32, 64, 128, 256, 512})
      if (splits > 1 || tile > 0) list.push_back({splits, tile, false});
  if (f.windowed())
    for (const std::int64_t tile : {16, 32, 64, 128, 256}) list.push_back({1, tile, true});
  return list;
}

/// The cells that are open already, and the one with the most keys that can be afforded: short ones are a single tile.
std::vector<OpenCell> cells_to_tell_apart(const Scene& scene) {
  const auto keys = [&](const Compared* c) { return scene.where.reference.num_keys[Facts::at(c->reference_row)]; };
  const Compared* longest = nullptr;
  for (const Compared* c : scene.wrong)
    if (c->nonfinite == 0 && c->wrong_dims > 0 && keys(c) <= kMostKeysRoundedWeights &&
        (longest == nullptr || keys(c) > keys(longest)))
      longest = c;
  std::vector<OpenCell> list;
  for (const OpenCell& cell : scene.cells)
    if (cell.end > 0 && list.size() < 2) list.push_back(cell);
  if (longest == nullptr) return list;
  OpenCell cell = open_cell(scene.facts, scene.observed, scene.where, *longest, kMostKeysRoundedWeights);
  if (cell.end > 0) list.push_back(std::move(cell));
  return list;
}

/// The ways to step through the keys that leave least of these cells' errors.
std::vector<Way> best_steps(const Scene& scene, const std::vector<OpenCell>& cells, Way way) {
  std::vector<std::pair<double, Way>> tried;
  for (const Steps& steps : all_steps(scene.facts)) {
    way.steps = steps;
    double left = 0;
    for (const OpenCell& cell : cells) left += distance_of(cell, way) / std::max(cell.error(), 1.0);
    tried.emplace_back(left, way);
  }
  std::stable_sort(tried.begin(), tried.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Way> best;
  for (const auto& [left, one] : tried)
    if (best.size() < kMost && (best.size() < kBestRoundedWeights || left <= tried.front().first + kAsGood)) best.push_back(one);
  return best;
}

}  // namespace

void propose_rounded_weights(const Scene& scene, Proposals& list) {
  const std::vector<OpenCell> cells = cells_to_tell_apart(scene);
  std::vector<Way> ways;
  for (const DType type : {DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e5m2}) ways.push_back({type, 0, {}, false});
  for (const double factor : {256.0, 448.0}) ways.push_back({DType::fp8_e4m3fn, 0, {}, false, factor});
  for (const double steps : {7.0, 15.0, 31.0, 63.0, 127.0, 255.0}) ways.push_back({DType::f32, steps, {}, false});
  for (Way way : ways)
    for (const bool rounded_sum : {false, true}) {
      way.rounded_sum = rounded_sum;
      for (const Way& best : best_steps(scene, cells, way)) {
        list.push_back({"rounded", "rounds softmax weights before they meet V",
                        formatted("to {}, relative to {}{}", best.text(), best.steps.text(),
                                  rounded_sum ? "; the denominator is their sum" : ""),
                        kNextRoundedWeights, 0, [best](Model& m) { plant(m, best); }});
      }
    }
}

}  // namespace quire::diagnose_detail
