// SPDX-License-Identifier: Apache-2.0
// Operands, scores or weights rounded to a narrow type, or cut at a largest value. Elementwise rounding can be predicted; the
// order of sums in a narrow accumulator cannot.
#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr int kRefinements = 40;
const char* const kNextRounding = "keep scores and sums in f32; look for a conversion to a narrow type, and for a clamp";

constexpr DType kNarrow[] = {DType::f16, DType::bf16, DType::fp8_e4m3fn, DType::fp8_e5m2};

void propose_types(const Scene& scene, Proposals& list) {
  const auto add = [&](const std::string& what, DType type, std::function<void(Model&)> plant) {
    list.push_back(
        {"rounded", "rounds " + what, "to " + std::string(name(type)), kNextRounding, 0, std::move(plant), nullptr, false});
  };
  for (const DType type : kNarrow) {
    const bool own = type == scene.facts.batch.query.dtype;
    if (!own)
      add("the query", type, function_changed(&Model::query, [type](const auto& before, const Row& row, std::int64_t d) {
            return rounded(type, before(row, d));
          }));
    for (const Sides sides : kSideSets)
      add(sides.text(), type,
          function_set(&Model::vector, [type, sides](const Row&, Side side, const Place&, std::int64_t, std::span<double> v) {
            if (!sides.has(side)) return;
            for (double& value : v) value = rounded(type, value);
          }));
    add("scores", type,
        function_changed(&Model::score, [type](const auto& before, const Model& model, const Row& row, std::int64_t k,
                                               double dot) { return rounded(type, before(model, row, k, dot)); }));
    add("dot products", type,
        function_changed(&Model::score, [type](const auto& before, const Model& model, const Row& row, std::int64_t k,
                                               double dot) { return before(model, row, k, rounded(type, dot)); }));
    if (type != scene.observed.output.dtype)
      add("the output", type, result_changed([type](const Row&, RowResult& result) {
            for (double& value : result.out) value = rounded(type, value);
          }));
    add("the normalised weights", type,
        function_changed(&Model::softmax,
                         [type](const auto& before, const Model& model, const Row& row, std::span<const Key> keys,
                                std::span<const double> scores, std::vector<double>& p) {
                           const double lse = before(model, row, keys, scores, p);
                           for (double& weight : p) weight = rounded(type, weight);
                           return lse;
                         }));
  }
}

/// A denominator of 16 bits, rounded after every few keys: what is small beside the sum so far is lost. `running`: relative to
/// the largest score so far, with which the sum is rescaled; else to the row's.
void plant_denominator(Model& m, DType type, std::size_t keys_a_time, bool running) {
  m.softmax = [=, before = m.softmax](const Model& model, const Row& row, std::span<const Key> keys,
                                      std::span<const double> scores, std::vector<double>& p) {
    const double lse = before(model, row, keys, scores, p), largest = faults_detail::largest(scores, faults_detail::kNegInf);
    if (!std::isfinite(lse) || !std::isfinite(largest)) return lse;
    const double right = std::exp(lse - largest);
    double sum = 0, max = running ? faults_detail::kNegInf : largest;
    for (std::size_t i = 0; i < keys.size(); i += keys_a_time) {
      const std::size_t end = std::min(keys.size(), i + keys_a_time);
      const double old = max;
      for (std::size_t j = i; j < end; ++j) max = std::max(max, scores[j]);
      double part = 0;
      for (std::size_t j = i; j < end && max > faults_detail::kNegInf; ++j) part += keys[j].weight * std::exp(scores[j] - max);
      sum = rounded(type, (sum > 0 ? sum * std::exp(old - max) : 0) + part);
    }
    const double sink = model.sink(row), wrong = sum + (std::isfinite(sink) ? std::exp(sink - largest) : 0);
    for (double& weight : p) weight *= right / wrong;
    return largest + std::log(wrong);
  };
}

void propose_denominators(Proposals& list) {
  for (const DType type : {DType::f16, DType::bf16})
    for (const std::size_t keys : {1, 2, 4, 8, 16, 32, 64, 128})
      for (const bool running : {false, true})
        list.push_back({"rounded", formatted("keeps the denominator in {}", name(type)),
                        formatted("rounded after every {}, relative to {}", keys == 1 ? "key" : formatted("{} keys", keys),
                                  running ? "the maximum so far" : "the row's maximum"),
                        kNextRounding, 1, [=](Model& m) { plant_denominator(m, type, keys, running); }});
}

/// A quantity that is cut at a limit; the limit is fitted.
struct Clamp {
  std::string what;
  std::function<void(Model&, double limit)> plant;
};

std::vector<Clamp> clamps() {
  std::vector<Clamp> list;
  const auto cut = [](double value, double limit) { return std::clamp(value, -limit, limit); };
  list.push_back({"dot products", [cut](Model& m, double limit) {
                    m.score = [cut, limit, before = m.score](const Model& model, const Row& row, std::int64_t k, double dot) {
                      return before(model, row, k, cut(dot, limit));
                    };
                  }});
  const auto cut_above = [](double value, double limit) { return std::min(value, limit); };
  list.push_back({"dot products from above", [cut_above](Model& m, double limit) {
                    m.score = [cut_above, limit, before = m.score](const Model& model, const Row& row, std::int64_t k,
                                                                   double dot) {
                      return before(model, row, k, cut_above(dot, limit));
                    };
                  }});
  list.push_back({"scaled dot products, before soft cap and ALiBi,", [cut](Model& m, double limit) {
                    m.cap = [cut, limit, before = m.cap](const Row& row, double score) { return before(row, cut(score, limit)); };
                  }});
  list.push_back({"scores", [cut](Model& m, double limit) {
                    m.score = [cut, limit, before = m.score](const Model& model, const Row& row, std::int64_t k, double dot) {
                      return cut(before(model, row, k, dot), limit);
                    };
                  }});
  for (const Sides sides : kSideSets)
    list.push_back({"elements of " + sides.text(), [cut, sides](Model& m, double limit) {
                      m.vector = [cut, sides, limit](const Row&, Side side, const Place&, std::int64_t, std::span<double> v) {
                        if (sides.has(side))
                          for (double& value : v) value = cut(value, limit);
                      };
                    }});
  list.push_back({"elements of the query", [cut](Model& m, double limit) {
                    m.query = [cut, limit, before = m.query](const Row& row, std::int64_t d) {
                      return cut(before(row, d), limit);
                    };
                  }});
  list.push_back({"elements of the output", [cut](Model& m, double limit) {
                    m.finish = [cut, limit, before = m.finish](const Row& row, RowResult& result) {
                      before(row, result);
                      for (double& value : result.out) value = cut(value, limit);
                    };
                  }});
  return list;
}

/// The limit that explains the cell best: powers of 1.25, then golden section.
void propose_clamp(const Scene& scene, const OpenCell& cell, const Clamp& clamp, Proposals& list) {
  const double before = cell.error();
  const auto left = [&](double limit) {
    Model m(scene.facts);
    clamp.plant(m, limit);
    return cell.distance(evaluate(m, std::span<const RowHead>(&cell.at, 1))[0].out) / before;
  };
  double best = 0, least = 0.7;
  constexpr int kSteps = 42;  // 0.1 to 1000
  for (int i = 0; i < kSteps; ++i) {
    const double limit = 0.1 * std::pow(1.25, i);
    if (const double value = left(limit); value < least) least = value, best = limit;
  }
  if (best == 0) return;
  double low = best / 1.25, high = best * 1.25;
  for (int i = 0; i < kRefinements && high - low > 1e-9 * high; ++i) {
    const double a = low + 0.381966 * (high - low), b = high - 0.381966 * (high - low);
    (left(a) < left(b) ? high : low) = left(a) < left(b) ? b : a;
  }
  const double limit = (low + high) / 2;
  if (!cell.explained_by(left(limit) * before)) return;
  list.push_back({"rounded", "cuts " + clamp.what + " at a largest value", formatted("{:.6g}", limit), kNextRounding, 1,
                  [clamp, limit](Model& m) { clamp.plant(m, limit); }});
}

}  // namespace

void propose_rounding(const Scene& scene, Proposals& list) {
  propose_types(scene, list);
  propose_denominators(list);
  propose_rounded_weights(scene, list);
  constexpr std::int64_t kMostKeys = 1024;
  for (const OpenCell& cell : scene.cells) {
    if (cell.to - cell.from > kMostKeys) continue;
    for (const Clamp& clamp : clamps()) propose_clamp(scene, cell, clamp, list);
    return;
  }
}

}  // namespace quire::diagnose_detail
