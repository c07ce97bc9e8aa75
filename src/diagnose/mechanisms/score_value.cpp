// SPDX-License-Identifier: Apache-2.0
// Mechanism: a number inside the score is wrong: the factor on q . K (softmax_scale, k_scale, a scaled q), the soft cap, the
// ALiBi slope or distance. The number is fitted to each wrong cell alone. Cells that agree give one number; cells that agree by
// head give one per head.
#include <algorithm>
#include <cmath>
#include <map>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kSameValue = 0.02;         // relative
constexpr int kRefinementsScoreValue = 48;  // golden section: 1e-10 of the bracket
constexpr std::size_t kCellsTriedScoreValue = 3;
constexpr std::int64_t kMostKeysPerHead = 2048;

/// A number inside the score.
struct Quantity {
  std::string mechanism, text, next;
  std::vector<double> grid;  ///< values to try first; neighbours bracket a minimum
  /// The score of a position under another value.
  std::function<double(const OpenCell&, std::int64_t position, double value)> score;
  /// `value` is NaN for a head that is not wrong: the truth stays there.
  std::function<void(Model&, std::function<double(const Row&)> value)> plant;
};

/// Squared distance, in tolerances, between what the cell shows and what it would hold.
double distance_at(const OpenCell& cell, const Quantity& quantity, double value) {
  std::vector<double> scores;
  double max = cell.sink_weight > 0 ? std::log(cell.sink_weight) + cell.max : -std::numeric_limits<double>::infinity();
  const double sink = max;
  for (std::int64_t k = cell.from; k < cell.to; ++k) {
    scores.push_back(cell.sees(k) ? quantity.score(cell, k, value) : -std::numeric_limits<double>::infinity());
    max = std::max(max, scores.back());
  }
  std::vector<double> out(cell.dims(), 0.0);
  double sum = std::isfinite(sink) ? std::exp(sink - max) : 0;
  for (std::int64_t k = cell.from; k < cell.to; ++k) {
    const double weight = std::exp(scores[Facts::at(k - cell.from)] - max);
    sum += weight;
    if (weight < 1e-14) continue;
    const double* v = cell.value(k);
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * v[d];
  }
  for (double& value_of : out) value_of /= sum;
  return cell.distance(out);
}

struct Fitted {
  double value = 0, left = 1;
};

/// The best value for all of these cells together, between two values.
double refine(std::span<const OpenCell> cells, const Quantity& quantity, double low, double high) {
  const double golden = (std::sqrt(5.0) - 1) / 2;
  const auto sum = [&](double value) {
    double total = 0;
    for (const OpenCell& cell : cells) total += distance_at(cell, quantity, value);
    return total;
  };
  double a = high - golden * (high - low), b = low + golden * (high - low), at_a = sum(a), at_b = sum(b);
  for (int i = 0; i < kRefinementsScoreValue && std::fabs(high - low) > 1e-9 * std::fabs(high); ++i) {
    if (at_a < at_b) {
      high = b, b = a, at_b = at_a, a = high - golden * (high - low), at_a = sum(a);
    } else {
      low = a, a = b, at_a = at_b, b = low + golden * (high - low), at_b = sum(b);
    }
  }
  return at_a < at_b ? a : b;
}

Fitted fit(const OpenCell& cell, const Quantity& quantity) {
  std::size_t best = 0;
  std::vector<double> left;
  const double before = cell.error();
  for (const double value : quantity.grid) {
    left.push_back(distance_at(cell, quantity, value) / before);
    if (left.back() < left[best]) best = left.size() - 1;
  }
  const std::size_t low = best == 0 ? 0 : best - 1, high = std::min(best + 1, left.size() - 1);
  const double value = refine(std::span(&cell, 1), quantity, quantity.grid[low], quantity.grid[high]);
  const double at_value = distance_at(cell, quantity, value) / before;
  return at_value < left[best] ? Fitted{value, at_value} : Fitted{quantity.grid[best], left[best]};
}

bool close(double a, double b) { return std::fabs(a - b) <= kSameValue * std::max(std::fabs(a), std::fabs(b)); }

void add_one_value(const Scene& scene, const Quantity& q, const std::vector<Fitted>& fits, Proposals& list) {
  const std::size_t count = fits.size();
  std::vector<double> values;
  for (const Fitted& f : fits) values.push_back(f.value);
  const double middle = median(values);
  double value = refine(std::span(scene.cells).first(count), q, middle * (1 - 2 * kSameValue), middle * (1 + 2 * kSameValue));
  if (middle == 0) value = 0;
  list.push_back({q.mechanism, q.text, formatted("{:.6g} fits", value), q.next, 1,
                  [q, value](Model& m) { q.plant(m, [value](const Row&) { return value; }); }});
}

/// The cheapest wrong cell of each head whose scores matter.
std::map<std::int64_t, const Compared*> cell_of_each_head(const Scene& scene) {
  constexpr std::int64_t kFewKeys = 4;
  std::map<std::int64_t, const Compared*> chosen;
  const auto keys = [&](const Compared* c) { return scene.where.reference.num_keys[Facts::at(c->reference_row)]; };
  for (const Compared* cell : scene.wrong) {
    if (cell->nonfinite > 0 || cell->wrong_dims == 0 || keys(cell) < kFewKeys || keys(cell) > kMostKeysPerHead) continue;
    const Compared*& own = chosen[cell->head];
    if (own == nullptr || keys(cell) < keys(own)) own = cell;
  }
  return chosen;
}

void add_value_by_head(const Scene& scene, const Quantity& q, Proposals& list) {
  std::map<std::int64_t, double> values;
  for (const auto& [head, compared] : cell_of_each_head(scene)) {
    const OpenCell cell = open_cell(scene.facts, scene.observed, scene.where, *compared, kMostKeysPerHead);
    const Fitted fitted = cell.end == 0 ? Fitted{} : fit(cell, q);
    if (cell.end == 0 || !cell.explained_by(fitted.left * cell.error())) return;
    values[head] = fitted.value;
  }
  if (values.size() < 2) return;
  std::string text;
  for (const auto& [head, value] : values)
    if (text.size() < 80) text += formatted("{}head {}: {:.5g}", text.empty() ? "" : ", ", head, value);
  list.push_back({q.mechanism, q.text + ", by head", text, q.next, 2, [q, values](Model& m) {
                    q.plant(m, [values](const Row& row) {
                      const auto own = values.find(row.head);
                      return own == values.end() ? std::numeric_limits<double>::quiet_NaN() : own->second;
                    });
                  }});
}

void try_quantity(const Scene& scene, const Quantity& q, Proposals& list) {
  std::vector<Fitted> fits;
  bool other_heads = false;
  for (const OpenCell& cell : scene.cells) {
    if (fits.size() == kCellsTriedScoreValue) break;
    fits.push_back(fit(cell, q));
    other_heads = other_heads || cell.at.head != scene.cells.front().at.head;
    if (!cell.explained_by(fits.back().left * cell.error())) return;
  }
  if (fits.empty()) return;
  if (std::all_of(fits.begin(), fits.end(), [&](const Fitted& f) { return close(f.value, fits.front().value); }))
    add_one_value(scene, q, fits, list);
  if (other_heads) add_value_by_head(scene, q, list);
}

std::vector<double> powers(double from, double to, double step) {
  std::vector<double> list;
  const int count = static_cast<int>(std::log(to / from) / std::log(step)) + 1;
  for (int i = 0; i < count; ++i) list.push_back(from * std::pow(step, i));
  return list;
}

/// Powers with both signs, and 0, ascending.
std::vector<double> signed_powers(double from, double to) {
  std::vector<double> list{0};
  for (const double value : powers(from, to, 1.3)) {
    list.push_back(value);
    list.push_back(-value);
  }
  std::sort(list.begin(), list.end());
  return list;
}

Quantity factor_on_scores() {
  Quantity q{"factor_scores",
             "multiplies q . K by another factor (softmax_scale, k_scale, or q and K themselves)",
             "print softmax_scale and k_scale as the kernel receives them, for the rows and heads that are wrong",
             signed_powers(1e-3, 1e3),
             {},
             {}};
  q.plant = [](Model& m, const std::function<double(const Row&)>& value) {
    m.score = [value, before = m.score](const Model& model, const Row& row, std::int64_t k, double dot) {
      const double factor = value(row);
      return before(model, row, k, std::isnan(factor) ? dot : factor * dot);
    };
  };
  return q;
}

Quantity soft_cap() {
  Quantity q{"soft_cap",
             "uses another soft cap",
             "print the soft cap as the kernel receives it; a layer may have its own",
             powers(0.25, 4096, 1.25),
             {},
             {}};
  q.plant = [](Model& m, const std::function<double(const Row&)>& value) {
    m.cap = [value, before = m.cap](const Row& row, double score) {
      const double cap = value(row);
      return std::isnan(cap) ? before(row, score) : cap * std::tanh(score / cap);
    };
  };
  return q;
}

Quantity slope() {
  Quantity q{"alibi_slope",
             "uses another ALiBi slope",
             "print the slopes that the kernel receives, and which element each query head reads",
             {},
             {},
             {}};
  q.grid = signed_powers(1e-5, 16);
  q.plant = [](Model& m, const std::function<double(const Row&)>& value) {
    m.bias = [value, before = m.bias](const Row& row, std::int64_t k) {
      const double own = value(row);
      return std::isnan(own) ? before(row, k) : own * static_cast<double>(k - row.q_pos);
    };
  };
  return q;
}

/// One distance for all keys of a tile: that of its first key.
void propose_distance_by_tile(const Facts& facts, Proposals& list) {
  if (!facts.options.alibi_slopes.present()) return;
  for (std::int64_t tile = 2; tile <= 256; tile *= 2)
    list.push_back({"alibi_slope", "takes the ALiBi distance of a tile's first key for all of its keys",
                    formatted("tiles of {} keys", tile), "slope_h * (k - q_pos), with the position of each key", 0,
                    [tile](Model& m) {
                      m.bias = [f = m.facts, tile, before = m.bias](const Row& row, std::int64_t k) {
                        return before(row, k - (k + f->key_begin[Facts::at(row.req)]) % tile);
                      };
                    }});
}

}  // namespace

void propose_score_value(const Scene& scene, Proposals& list) {
  const Model truth(scene.facts);
  Quantity factor = factor_on_scores();
  factor.score = [&truth](const OpenCell& cell, std::int64_t k, double c) {
    return truth.score(truth, cell.row, k, c * cell.dots[Facts::at(k)]);
  };
  try_quantity(scene, factor, list);
  // Kernels without a cap or slopes have no such number to confuse; a wrong layer's, or a stale argument's, they may have.
  Quantity cap = soft_cap();
  cap.score = [&truth](const OpenCell& cell, std::int64_t k, double limit) {
    const double score = truth.softmax_scale(cell.row) * cell.dots[Facts::at(k)];
    return limit * std::tanh(score / limit) + truth.bias(cell.row, k);
  };
  try_quantity(scene, cap, list);
  Quantity alibi = slope();
  alibi.score = [&truth](const OpenCell& cell, std::int64_t k, double value) {
    return truth.cap(cell.row, truth.softmax_scale(cell.row) * cell.dots[Facts::at(k)]) +
           value * static_cast<double>(k - cell.row.q_pos);
  };
  try_quantity(scene, alibi, list);
  propose_distance_by_tile(scene.facts, list);
}

}  // namespace quire::diagnose_detail
