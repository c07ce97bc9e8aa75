// SPDX-License-Identifier: Apache-2.0
// Another sink. A sink scales the output and nothing else, so each wrong cell names the sink that it saw.
#include <cmath>

#include "diagnose/mechanisms/ratio.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kSameSink = 0.02;  // relative difference of exp(sink), the weight of a sink

double sink_of(const Facts& f, std::int64_t head) {
  Row row;
  row.query_head = row.head = head;
  return Model(f).sink(row);
}

/// The denominator is relative to the largest score of the keys, and exp(sink) is added as it is.
Proposal sink_without_maximum() {
  return {"sink",
          "adds exp(sink) to a denominator that is relative to the maximum",
          "",
          "subtract the maximum from the sink's logit, as from every score",
          0,
          function_changed(&Model::softmax, [](const auto& before, const Model& model, const Row& row, std::span<const Key> keys,
                                               std::span<const double> scores, std::vector<double>& p) {
            const double lse = before(model, row, keys, scores, p), none = -std::numeric_limits<double>::infinity();
            const double sink = model.sink(row), largest = faults_detail::largest(scores, none);
            if (!std::isfinite(lse) || !std::isfinite(sink) || !std::isfinite(largest)) return lse;
            double own = 0;  // sum of the keys' weights, relative to their largest score
            for (const double share : p) own += share;
            own *= std::exp(lse - largest);
            const double denominator = own + std::exp(sink);
            for (double& weight : p) weight *= std::exp(lse - largest) / denominator;
            return largest + std::log(denominator);
          })};
}

}  // namespace

void propose_sink(const Scene& scene, Proposals& list) {
  if (scene.facts.options.sinks.present()) list.push_back(sink_without_maximum());
  const std::vector<Ratio> found = explaining_ratios(scene);
  std::vector<double> logits;
  std::vector<Ratio> known;
  for (const Ratio& r : found) {
    // exp(lse) = sum of keys + exp(sink). The observed output has exp(lse) / factor there.
    const double lse = scene.where.reference.lse[Facts::at(r.cell->reference_row)];
    const double keys = 1 - std::exp(sink_of(scene.facts, r.cell->head) - lse);
    const double extra = 1 / r.factor - keys;
    if (!(r.factor > 0) || !(extra > 0)) continue;
    known.push_back(r);
    logits.push_back(lse + std::log(extra));
  }
  if (known.empty() || known.size() * 10 < found.size() * 9) return;
  const char* const next =
      "print the sinks that the kernel receives, and which element each query head reads; a layer has its own";
  const auto plant = [&](std::string text, std::string detail, int parameters, std::function<double(const Row&)> sink) {
    list.push_back(
        {"sink", std::move(text), std::move(detail), next, parameters, [sink = std::move(sink)](Model& m) { m.sink = sink; }});
  };
  const std::map<std::int64_t, double> heads = clearest_by_head(known, logits);
  std::vector<double> clearest;
  for (const auto& [head, logit] : heads) clearest.push_back(std::exp(logit));
  if (all_same(clearest, kSameSink)) {
    const double logit = std::log(median(clearest));
    plant("uses another sink", formatted("sink {:.5g} for every head", logit), 1, [logit](const Row&) { return logit; });
  }
  const Facts* f = &scene.facts;
  plant("uses other sinks", heads_text(heads), 2, [f, heads](const Row& row) {
    const auto own = heads.find(row.head);
    return own == heads.end() ? sink_of(*f, row.head) : own->second;
  });
}

}  // namespace quire::diagnose_detail
