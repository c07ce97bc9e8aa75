// SPDX-License-Identifier: Apache-2.0
// See profile_report.h.
#include "diagnose/profile_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "numerics/tolerance.h"
#include "text/formatted.h"

namespace quire::cause {
namespace {

/// The largest error / tolerance of the rows that are right.
double worst_right(const Localisation& where) {
  double worst = 0;
  for (const Compared& row : where.rows)
    if (!row.wrong) worst = std::max(worst, row.worst_ratio);
  return worst;
}

std::string percent_text(double share) { return formatted("{:.2g} %", 100 * share); }

}  // namespace

double least_factor(const Reference& expected) {
  const numerics::OutputType type = numerics::output_type(expected.output);
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t row = 0; row < expected.num_tokens * expected.num_q_heads; ++row) {
    const numerics::RowErrors errors = numerics::row_errors(expected, row);
    for (std::int64_t i = row * expected.head_dim; i < (row + 1) * expected.head_dim; ++i) {
      const double out = std::fabs(expected.out[static_cast<std::size_t>(i)]);
      if (out > 0) least = std::min(least, numerics::output_tolerance(expected, errors, i, type) / out);
    }
  }
  return least;
}

std::string verdict_text(const std::string& verdict, const Localisation& where) {
  const NumericsProfile& profile = where.reference.profile;
  if (verdict != "right" || profile.plain()) return verdict;
  return formatted("right for a kernel that {} (worst {:.2f} of the tolerance)", in_words(profile), worst_right(where));
}

std::vector<std::string> profile_lines(const Localisation& where) {
  const NumericsProfile& profile = where.reference.profile;
  if (profile.plain()) return {};
  std::vector<std::string> lines;
  lines.push_back(formatted("{} ({}): judged as a kernel that {}", to_string(profile),
                            where.profile_found ? "found by itself: --profile plain judges without" : "as given",
                            in_words(profile)));
  const std::string in_f32 =
      where.profile_found ? formatted("; in f32, from {} on", percent_text(where.least_factor_in_f32)) : "";
  lines.push_back(formatted("it hides small errors: a wrong factor on every output shows from {} on{}",
                            percent_text(least_factor(where.reference)), in_f32));
  return lines;
}

nlohmann::ordered_json profile_json(const Localisation& where) {
  const NumericsProfile& p = where.reference.profile;
  const double least = least_factor(where.reference);
  return {{"weights", name(p.weights)},
          {"scores", name(p.scores)},
          {"accumulator", name(p.accumulator)},
          {"products", p.tf32_products ? "tf32" : "f32"},
          {"dequantised", p.dequantised_to_query ? "query type" : "exact"},
          {"found", where.profile_found},
          {"words", in_words(p)},
          {"worst", worst_right(where)},
          {"least_factor", std::isfinite(least) ? nlohmann::ordered_json(least) : nlohmann::ordered_json(nullptr)}};
}

}  // namespace quire::cause
