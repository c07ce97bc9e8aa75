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

Plant scaled_by(std::function<double(const Row&)> factor) {
  return result_changed([factor = std::move(factor)](const Row& row, RowResult& result) {
    const double c = factor(row);
    for (double& value : result.out) value *= c;
  });
}

void add_one_factor(double c, Proposals& list) {
  list.push_back({"factor_out", "multiplies the output by a factor", formatted("times {:.6g}", c), kNextFactor, 1,
                  scaled_by([c](const Row&) { return c; })});
}

/// The ratio of two v_scales, if every head's factor is one: the head whose scale was taken.
std::string scale_taken(const Facts& f, const std::map<std::int64_t, double>& factors) {
  const Tensor& scales = f.cache.v_scale;
  if (!scales.present() || scales.rank != 1 || scales.shape[0] != f.num_kv_heads || f.num_kv_heads < 2) return {};
  const Model truth(f);
  const auto scale_of = [&](std::int64_t kv_head) { return truth.scale(Side::value, Place{}, kv_head); };
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
  list.push_back({"factor_out", "multiplies the output by a factor that differs by head",
                  heads_text(heads) + scale_taken(scene.facts, heads), kNextFactor, 2, scaled_by([heads](const Row& row) {
                    const auto known = heads.find(row.head);
                    return known == heads.end() ? 1.0 : known->second;
                  })});
}

}  // namespace quire::diagnose_detail
