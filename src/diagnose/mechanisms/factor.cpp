// SPDX-License-Identifier: Apache-2.0
// The output is the right one times a factor: of everything, of a head, or of the rows of one request. A factor on V, on v_scale
// and on the output are the same number.
#include <cmath>

#include "diagnose/mechanisms/ratio.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kSameFactor = 0.02;  // relative: factors of cells whose outputs are rounded to 8 bits
const char* const kNextFactor =
    "print v_scale and every factor between the sum over keys and the store, for the rows and heads that are wrong";

void scale_by(faults_detail::Model& m, std::function<double(const faults_detail::Row&)> factor) {
  m.finish = [factor = std::move(factor), before = m.finish](const faults_detail::Row& row, faults_detail::RowResult& result) {
    before(row, result);
    const double c = factor(row);
    for (double& value : result.out) value *= c;
  };
}

void add_one_factor(double c, Proposals& list) {
  Proposal p{"factor_out", "multiplies the output by a factor", formatted("times {:.6g}", c), kNextFactor, 1, {}};
  p.plant = [c](faults_detail::Model& m) { scale_by(m, [c](const faults_detail::Row&) { return c; }); };
  list.push_back(std::move(p));
}

/// The ratio of two v_scales, if every head's factor is one: the head whose scale was taken.
std::string scale_taken(const faults_detail::Facts& f, const std::map<std::int64_t, double>& factors) {
  const Tensor& scales = f.cache.v_scale;
  if (!scales.present() || scales.rank != 1 || scales.shape[0] != f.num_kv_heads || f.num_kv_heads < 2) return {};
  const faults_detail::Model truth(f);
  const auto scale_of = [&](std::int64_t kv_head) {
    return truth.scale(faults_detail::Side::value, faults_detail::Place{}, kv_head);
  };
  const auto [head, factor] = *factors.begin();
  for (std::int64_t g = 0; g < f.num_kv_heads; ++g)
    if (std::fabs(scale_of(g) / scale_of(head / f.group) - factor) < kSameFactor * factor && g != head / f.group)
      return formatted("; head {} has the v_scale of KV head {}", head, g);
  return {};
}

}  // namespace

void propose_factor(const Scene& scene, Proposals& list) {
  const std::vector<Ratio> found = explaining_ratios(scene);
  if (found.empty()) return;
  std::vector<double> factors;
  for (const Ratio& r : found) factors.push_back(r.factor);
  if (all_same(factors, kSameFactor)) return add_one_factor(median(factors), list);
  const std::map<std::int64_t, double> heads = by_head(found, factors, kSameFactor);
  if (heads.size() < 2) return;
  Proposal p{"factor_out",
             "multiplies the output by a factor that differs by head",
             heads_text(heads) + scale_taken(scene.facts, heads),
             kNextFactor,
             2,
             {}};
  p.plant = [heads](faults_detail::Model& m) {
    scale_by(m, [heads](const faults_detail::Row& row) {
      const auto known = heads.find(row.head);
      return known == heads.end() ? 1.0 : known->second;
    });
  };
  list.push_back(std::move(p));
}

}  // namespace quire::diagnose_detail
