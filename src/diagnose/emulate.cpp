// SPDX-License-Identifier: Apache-2.0
// See find_profile.h. Weights are rounded relative to their row's largest one, as an online softmax leaves them.
#include "diagnose/find_profile.h"

#include <algorithm>
#include <cmath>

namespace quire::diagnose_detail {
namespace {

double tf32(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::isfinite(value) ? std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11) : value;
}

/// Rounds every weight that the softmax of `m` gives, by `round`, as a multiple of the row's largest.
template <typename Round>
void round_weights(Model& m, Round round) {
  m.softmax = [exact = m.softmax, round](const Model& model, const Row& row, std::span<const Key> keys,
                                         std::span<const double> scores, std::vector<double>& p) {
    const double lse = exact(model, row, keys, scores, p);
    const double largest = p.empty() ? 0 : *std::max_element(p.begin(), p.end());
    if (largest > 0)
      for (double& weight : p) weight = round(weight / largest) * largest;
    return lse;
  };
}

void store_scores(Model& m, DType type) {
  m.score = [type](const Model& model, const Row& row, std::int64_t position, double dot) {
    const auto& options = model.facts->options;
    double s = rounded(type, rounded(type, dot) * model.softmax_scale(row));
    if (options.logits_soft_cap) {
      const double cap = *options.logits_soft_cap;
      s = rounded(type, rounded(type, std::tanh(rounded(type, s / cap))) * cap);
    }
    const double bias = model.bias(row, position);
    return bias == 0 ? s : rounded(type, s + rounded(type, bias));
  };
}

}  // namespace

Model emulated(const Facts& facts, const NumericsProfile& profile) {
  Model m(facts);
  if (profile.scores != DType::f32) store_scores(m, profile.scores);
  if (profile.weights != DType::f32) round_weights(m, [type = profile.weights](double p) { return rounded(type, p); });
  if (profile.tf32_products) {
    round_weights(m, tf32);
    m.query = [exact = m.query](const Row& row, std::int64_t dim) { return tf32(exact(row, dim)); };
  }
  const DType to = profile.dequantised_to_query ? facts.batch.query.dtype : DType::f32;
  if (to != DType::f32 || profile.tf32_products)
    m.vector = [to, short_products = profile.tf32_products](const Row&, Side, const Place& place, std::int64_t,
                                                            std::span<double> values) {
      for (double& value : values) {
        if (place.kind == Place::Kind::cache) value = rounded(to, value);
        if (short_products) value = tf32(value);
      }
    };
  return m;
}

}  // namespace quire::diagnose_detail
