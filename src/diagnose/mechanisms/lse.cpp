// SPDX-License-Identifier: Apache-2.0
// The output is right and its lse is not: another base, a term that is missing or added, a factor.
#include <algorithm>
#include <cmath>

#include "diagnose/mechanisms/mechanism.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kSame = 2e-4;  // relative: lse is f32, its error some roundoffs of |lse|
const char* const kNextLse = "lse = m + log(denominator), natural logarithm, the sink included";

void add(Proposals& list, std::string text, std::string detail, int parameters, std::function<double(const Row&, double)> lse) {
  list.push_back({"factor_lse", std::move(text), std::move(detail), kNextLse, parameters,
                  result_changed([lse](const Row& row, RowResult& result) { result.lse = lse(row, result.lse); })});
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
}

}  // namespace quire::diagnose_detail
