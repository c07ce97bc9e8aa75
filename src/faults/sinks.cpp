// SPDX-License-Identifier: Apache-2.0
// Attention sinks: one more logit per query head in the denominator, with no value.

#include <cmath>

#include "faults/families.h"

namespace quire::faults_detail {
namespace {

constexpr const char* kNone = "there are no sinks";

/// The sink as `wrong(row, true sink)`.
Suspects sink(const Clues& e, std::function<double(const Row&, double)> wrong) {
  const Facts& f = e.facts;
  if (!f.options.sinks.present()) return cannot_show(kNone);
  const Model truth(f);
  bool differs = false;
  for (std::int64_t h = 0; h < f.num_q_heads; ++h) {
    Row row;
    row.query_head = h;
    row.query_len = 2;
    const double right = truth.sink(row);
    differs = differs || std::fabs(wrong(row, right) - right) > 1e-3;
  }
  if (!differs) return cannot_show("the sinks come out the same");
  return one(function_changed(&Model::sink,
                              [wrong = std::move(wrong)](const auto& before, const Row& r) { return wrong(r, before(r)); }));
}

Suspects sink_dropped(const Clues& e) {
  if (!e.facts.options.sinks.present()) return cannot_show(kNone);
  return one(function_set(&Model::sink, [](const Row&) { return kNegInf; }));
}

Suspects in_numerator(const Clues& e) {
  if (!e.facts.options.sinks.present()) return cannot_show(kNone);
  return one([](Model& m) {
    m.finish = [sink = m.sink, before = m.finish](const Row& r, RowResult& result) {
      const double p = result.lse == kNegInf || !result.written ? 0 : std::exp(sink(r) - result.lse);
      for (double& value : result.out) value += p;
      before(r, result);
    };
  });
}

Suspects scaled(const Clues& e) {
  const double scale = Model(e.facts).softmax_scale(Row{});
  return sink(e, [scale](const Row&, double s) { return scale * s; });
}

Suspects other_base(const Clues& e) {
  Suspects s = sink(e, [](const Row&, double value) { return value * std::log(2.0); });
  if (s.list.empty()) return s;
  s.list.front().detail = "sink * ln(2)";
  s.list.push_back(sink(e, [](const Row&, double value) { return value / std::log(2.0); }).list.front());
  s.list.back().detail = "sink * log2(e)";
  return s;
}

Suspects capped(const Clues& e) {
  if (!e.facts.options.logits_soft_cap) return cannot_show(e.facts.options.sinks.present() ? "no soft cap is set" : kNone);
  const double cap = *e.facts.options.logits_soft_cap;
  return sink(e, [cap](const Row&, double s) { return cap * std::tanh(s / cap); });
}

Suspects of_head(const Clues& e, const std::function<std::int64_t(std::int64_t)>& of) {
  return sink(e, [of, truth = Model(e.facts).sink](const Row& r, double) {
    Row other = r;
    other.query_head = of(r.query_head);
    return truth(other);
  });
}
Suspects sink_of_kv_head(const Clues& e) {
  return of_head(e, [group = e.facts.group](std::int64_t h) { return h / group; });
}
Suspects sink_of_next_head(const Clues& e) {
  return of_head(e, [n = e.facts.num_q_heads](std::int64_t h) { return (h + 1) % n; });
}

Suspects decode_only(const Clues& e) {
  const Facts& f = e.facts;
  if (!f.options.sinks.present()) return cannot_show(kNone);
  if (f.max_query_len() <= 1) return cannot_show("no request has more than one row");
  if (!any_request(f, [&](std::int64_t r) { return f.query_len(r) == 1; }))
    return cannot_show("no request has query_len 1: this is sinks_dropped here");
  return one(
      function_changed(&Model::sink, [](const auto& before, const Row& r) { return r.query_len == 1 ? before(r) : kNegInf; }));
}

}  // namespace

void add_sinks(std::vector<Fault>& list) {
  const Family add{list, "sinks"};
  const char* const kSink = "the sink is one more logit of the query head, neither scaled nor capped, in the denominator only";
  add("sinks_dropped", "leaves the sinks out of the denominator", "vllm#52148",
      "look at the path that serves these rows: does it take sinks?", sink_dropped);
  add("sinks_in_decode_only", "leaves the sinks out in prefill rows", "", "pass the sinks to the prefill kernel too",
      decode_only);
  add("sink_in_numerator", "gives the sink a value of 1", "", kSink, in_numerator);
  add("sink_scaled", "multiplies the sink by softmax_scale", "", kSink, scaled);
  add("sink_in_other_base", "mixes a sink of one base with scores of the other", "",
      "a kernel that uses 2^x needs sink * log2(e)", other_base);
  add("sink_capped", "applies the soft cap to the sink", "", kSink, capped);
  add("sink_of_kv_head", "takes the sink at the KV head's index", "", kSink, sink_of_kv_head);
  add("sink_of_next_head", "takes the sink of the next head", "", kSink, sink_of_next_head);
}

}  // namespace quire::faults_detail
