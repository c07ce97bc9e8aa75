// SPDX-License-Identifier: Apache-2.0
// The output is right and its lse is not: another base, a term that is missing or added, a factor, another order of its axes.
#include <algorithm>
#include <cmath>

#include "diagnose/axis_order.h"
#include "diagnose/mechanisms/mechanism.h"
#include "numerics/tolerance.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kSame = 2e-4;  // relative: lse is f32, its error some roundoffs of |lse|
const char* const kNextLse = "lse = m + log(denominator), natural logarithm, the sink included";

void add(Proposals& list, std::string text, std::string detail, int parameters, std::function<double(const Row&, double)> lse) {
  list.push_back({"factor_lse", std::move(text), std::move(detail), kNextLse, parameters,
                  result_changed([lse](const Row& row, RowResult& result) { result.lse = lse(row, result.lse); })});
}

/// The order of axes in which every right lse is there, wherever it belongs.
void propose_order(const Scene& scene, Proposals& list) {
  const Facts& f = scene.facts;
  const Reference& right = scene.where.reference;
  const bool wrong = std::ranges::any_of(scene.wrong, &Compared::wrong_lse);
  if (!wrong || !scene.where.complete || scene.observed.lse.shape[0] != f.num_tokens) return;
  for (const AxisOrder& order : axis_orders()) {
    std::vector<double> stored(right.lse.size());
    const bool all = std::ranges::all_of(scene.where.rows, [&](const Compared& cell) {
      const RowHead at = order.place(f, {cell.token, cell.head});
      const double seen = scene.observed.lse_at(at.token, at.head), expected = right.lse[Facts::at(cell.reference_row)];
      stored[Facts::at(at.token * f.num_q_heads + at.head)] = expected;
      return seen == expected || std::fabs(seen - expected) <= numerics::lse_tolerance(right, cell.reference_row);
    });
    if (!all) continue;
    list.push_back({"factor_lse", "writes the right lse in another order", order.text(),
                    "lse is [num_tokens, num_q_heads]: write it by its strides", 0,
                    result_changed([stored, heads = f.num_q_heads](const Row& row, RowResult& result) {
                      result.lse = stored[Facts::at(row.token * heads + row.head)];
                    })});
    return;
  }
}

}  // namespace

void propose_lse(const Scene& scene, Proposals& list) {
  std::vector<double> differences, ratios;
  for (const Compared* cell : scene.wrong) {
    if (!cell->wrong_lse || cell->wrong_dims > 0) continue;
    const double expected = scene.where.reference.lse[Facts::at(cell->reference_row)];
    const double seen = scene.observed.lse_at(cell->token, cell->head);
    if (!std::isfinite(expected) || !std::isfinite(seen)) continue;
    differences.push_back(seen - expected);
    if (expected != 0) ratios.push_back(seen / expected);
  }
  if (differences.empty()) return;
  const double offset = median(differences), factor = median(ratios);
  if (std::all_of(differences.begin(), differences.end(),
                  [&](double x) { return std::fabs(x - offset) < kSame + std::fabs(offset) * 0.02; }))
    add(list, "adds a number to the lse", formatted("{:+.5g}", offset), 1,
        [offset](const Row&, double lse) { return lse + offset; });
  if (all_same(ratios, 0.01)) {
    const bool base_2 = std::fabs(factor - 1 / std::log(2.0)) < 1e-3;
    add(list, base_2 ? "writes the lse to base 2" : "multiplies the lse by a factor", formatted("times {:.6g}", factor),
        base_2 ? 0 : 1, [factor](const Row&, double lse) { return factor * lse; });
  }
  add(list, "writes the denominator, without the logarithm", "exp(lse)", 0, [](const Row&, double lse) { return std::exp(lse); });
  add(list, "negates the lse", "", 0, [](const Row&, double lse) { return -lse; });
  propose_order(scene, list);
}

}  // namespace quire::diagnose_detail
