// SPDX-License-Identifier: Apache-2.0
// One projection finds every permutation of cells, not only known ones.
#include "diagnose/cell_directory.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "diagnose/fault_model.h"
#include "numerics/tolerance.h"

namespace quire::diagnose_detail {
namespace {

std::int64_t nearness(const Compared& a, const Compared& b) {
  return (a.token == b.token ? 0 : 1000000 + std::abs(a.token - b.token)) + std::abs(a.head - b.head);
}

}  // namespace

CellDirectory::CellDirectory(const Facts& facts, const Observed& observed, const Localisation& where)
    : facts_(facts), observed_(observed), where_(where) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (std::int64_t d = 0; d < facts.v_head_dim; ++d) direction_.push_back(normal(random));
  for (const Compared& cell : where.rows) {
    double sum = 0;
    for (std::size_t d = 0; d < direction_.size(); ++d) sum += direction_[d] * this->expected(cell, d);
    if (std::isfinite(sum)) entries_.push_back({sum, &cell});
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.projection < b.projection; });
}

double CellDirectory::expected(const Compared& cell, std::size_t d) const {
  return where_.reference.out[Facts::at(cell.reference_row * facts_.v_head_dim) + d];
}

double CellDirectory::observed(const Compared& cell, std::size_t d) const {
  return observed_.at(cell.token, cell.head, static_cast<std::int64_t>(d));
}

bool CellDirectory::same(const Compared& cell, const Compared& other) const {
  const numerics::OutputType type = numerics::output_type(where_.reference, observed_.output.dtype);
  for (std::size_t d = 0; d < direction_.size(); ++d) {
    const std::int64_t element = other.reference_row * facts_.v_head_dim + static_cast<std::int64_t>(d);
    const double tolerance = numerics::output_tolerance(where_.reference, other.reference_row, element, type);
    if (!(std::fabs(observed(cell, d) - expected(other, d)) <= tolerance)) return false;
  }
  return true;
}

const Compared* CellDirectory::holder(const Compared& cell) const {
  const numerics::OutputType type = numerics::output_type(where_.reference, observed_.output.dtype);
  double sum = 0, slack = 0;
  for (std::size_t d = 0; d < direction_.size(); ++d) {
    const double seen = observed(cell, d);
    sum += direction_[d] * seen;
    slack += std::fabs(direction_[d]) * (2 * type.roundoff * std::fabs(seen) + type.smallest + 1e-6);
  }
  if (!std::isfinite(sum)) return nullptr;
  const Compared* best = nullptr;
  auto at = std::lower_bound(entries_.begin(), entries_.end(), sum - slack,
                             [](const Entry& e, double value) { return e.projection < value; });
  for (; at != entries_.end() && at->projection <= sum + slack; ++at)
    if (at->cell != &cell && same(cell, *at->cell) && (best == nullptr || nearness(cell, *at->cell) < nearness(cell, *best)))
      best = at->cell;
  return best;
}

}  // namespace quire::diagnose_detail
