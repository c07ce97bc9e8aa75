// SPDX-License-Identifier: Apache-2.0
// Least squares of one factor per cell, in units of the tolerance.
#include "diagnose/mechanisms/ratio.h"

#include <algorithm>
#include <cmath>

#include "numerics/tolerance.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kExplains = 0.02;                        // share of the squared error that a ratio may leave
constexpr double kExplainsWithNoise = 0.2, kNoise = 0.3;  // bounds of OpenCell::explained_by()
constexpr double kNearlyAllRatio = 0.95;                  // share of the cells
constexpr std::size_t kMostCells = 20000;

Ratio ratio_of(const Scene& scene, const Compared& cell) {
  const numerics::OutputType type = numerics::output_type(scene.where.reference, scene.observed.output.dtype);
  const Reference& reference = scene.where.reference;
  double cross = 0, square = 0, before = 0, seen = 0;
  for (std::int64_t d = 0; d < reference.v_head_dim; ++d) {
    const std::int64_t element = cell.reference_row * reference.v_head_dim + d;
    if (!scene.where.wrong_dim(static_cast<std::size_t>(cell.reference_row), d)) continue;
    const double expected = reference.out[Facts::at(element)], observed = scene.observed.at(cell.token, cell.head, d);
    const double tolerance =
        numerics::output_tolerance(reference, cell.reference_row, element, type) + type.roundoff * std::fabs(observed);
    if (!std::isfinite(observed) || !std::isfinite(expected) || !(tolerance > 0)) return {&cell, 1, 1, 1};
    const double w = 1 / (tolerance * tolerance);
    cross += w * expected * observed;
    square += w * expected * expected;
    seen += w * observed * observed;
    before += w * (observed - expected) * (observed - expected);
  }
  if (!(square > 0) || !(before > 0)) return {&cell, 1, 1, 1};
  const double factor = cross / square;
  const double left = std::max(0.0, seen - factor * cross);
  return {&cell, factor, left / before, left / static_cast<double>(cell.wrong_dims)};
}

}  // namespace

std::vector<Ratio> ratios(const Scene& scene) {
  std::vector<Ratio> list;
  const std::size_t step = scene.wrong.size() / kMostCells + 1;
  for (std::size_t i = 0; i < scene.wrong.size(); i += step)
    if (scene.wrong[i]->nonfinite == 0 && scene.wrong[i]->wrong_dims > 0) list.push_back(ratio_of(scene, *scene.wrong[i]));
  return list;
}

std::vector<Ratio> explaining_ratios(const Scene& scene) {
  std::vector<Ratio> list = ratios(scene);
  const std::size_t all = list.size();
  std::erase_if(list,
                [](const Ratio& r) { return r.left > kExplains && (r.left > kExplainsWithNoise || r.left_per_dim > kNoise); });
  if (static_cast<double>(list.size()) < kNearlyAllRatio * static_cast<double>(all)) list.clear();
  return list;
}

std::map<std::int64_t, double> by_head(const std::vector<Ratio>& list, const std::vector<double>& values, double relative) {
  std::map<std::int64_t, std::vector<double>> of_head;
  for (std::size_t i = 0; i < list.size(); ++i) of_head[list[i].cell->head].push_back(values[i]);
  std::map<std::int64_t, double> result;
  for (const auto& [head, own] : of_head) {
    if (!all_same(own, relative)) return {};
    result[head] = median(own);
  }
  return result;
}

std::map<std::int64_t, double> clearest_by_head(const std::vector<Ratio>& list, const std::vector<double>& values) {
  std::map<std::int64_t, std::pair<double, double>> best;  // head -> distance of the factor from 1, value
  for (std::size_t i = 0; i < list.size(); ++i) {
    const double distance = std::fabs(std::log(std::max(1e-300, std::fabs(list[i].factor))));
    std::pair<double, double>& own = best[list[i].cell->head];
    if (distance > own.first) own = {distance, values[i]};
  }
  std::map<std::int64_t, double> result;
  for (const auto& [head, value] : best) result[head] = value.second;
  return result;
}

std::string heads_text(const std::map<std::int64_t, double>& values) {
  std::string text;
  std::size_t count = 0;
  for (const auto& [head, value] : values) {
    if (count++ == 6) return text + ", ...";
    text += formatted("{}head {}: {:.5g}", text.empty() ? "" : ", ", head, value);
  }
  return text;
}

}  // namespace quire::diagnose_detail
