// SPDX-License-Identifier: Apache-2.0
// Faults of softmax: maximum, exp, denominator, and the lse that is written beside the output.
#include <algorithm>
#include <cmath>

#include "faults/families.h"
#include "semantics/ceil_div.h"
#include "semantics/dtype.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

constexpr const char* kNoLse = "the batch asks for no lse";

Find weight(double (*wrong)(double score, double max)) {
  return [wrong](const Clues& e) {
    if (!scores_matter(e.facts)) return cannot_show(kOneKey);
    return one([wrong](Model& m) { m.weight = wrong; });
  };
}
/// f32 exp of the bare score: infinity from 88.7 on, and infinity / infinity is NaN.
Suspects no_max(const Clues& e) {
  const auto plant = function_set(&Model::weight, [](double s, double) -> double { return std::exp(static_cast<float>(s)); });
  return if_it_changes_by(e, -kNegInf, plant, "no score that was looked at exceeds 88, where exp overflows f32");
}

bool spans_tiles(const Span& keys, std::int64_t tile) {
  return keys.begin < keys.end && keys.begin / tile != (keys.end - 1) / tile;
}

/// A running softmax that does not multiply what it has by exp(old max - new max).
Suspects not_rescaled(const Clues& e) {
  const Facts& f = e.facts;
  Suspects s;
  std::vector<std::int64_t> tiles = {16, 32, 64, 128};
  if (std::find(tiles.begin(), tiles.end(), f.page_size) == tiles.end()) tiles.push_back(f.page_size);
  for (const bool denominator_too : {false, true})
    for (const std::int64_t tile : tiles) {
      if (!any_row(f, [&](std::int64_t r, std::int64_t q_pos) { return spans_tiles(f.hull(r, q_pos), tile); })) continue;
      const auto plant =
          function_set(&Model::softmax, [tile, denominator_too](const Model& model, const Row& r, std::span<const Key> keys,
                                                                std::span<const double> scores, std::vector<double>& p) {
            const double sink = model.sink(r), last = largest(scores, sink);
            double max = sink, sum = sink == kNegInf ? 0 : model.weight(sink, denominator_too ? sink : last);
            p.assign(keys.size(), 0.0);
            if (last == kNegInf) return kNegInf;
            for (std::size_t i = 0; i < keys.size(); ++i) {
              if (i == 0 || keys[i].position / tile != keys[i - 1].position / tile)
                for (std::size_t j = i; j < keys.size() && keys[j].position / tile == keys[i].position / tile; ++j)
                  max = largest(scores.subspan(j, 1), max);
              if (keys[i].weight == 0 || max == kNegInf) continue;
              p[i] = keys[i].weight * model.weight(scores[i], max);
              sum += denominator_too ? p[i] : keys[i].weight * model.weight(scores[i], last);
            }
            for (double& value : p) value /= sum;
            return last + std::log(sum);
          });
      s.list.push_back(
          {formatted("{}, tiles of {} keys", denominator_too ? "output and denominator" : "output only", tile), plant});
    }
  return std::move(s).or_why_not("no row sees keys of two tiles of 16 or more: the maximum is known before the first sum");
}

/// A kernel whose sum starts at 1 and maximum at 0, which nothing forgets later.
Suspects starts_at_one(const Clues& e) {
  if (e.facts.num_tokens == 0) return cannot_show("the batch has no rows");
  return one(function_changed(&Model::sink, [](const auto& before, const Row& r) {
    const double sink = before(r);
    return sink == kNegInf ? 0.0 : std::max(sink, 0.0) + std::log1p(std::exp(-std::fabs(sink)));
  }));
}

Suspects not_normalised(const Clues& e) {
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  return one(function_changed(&Model::softmax, [](const auto& before, const Model& model, const Row& r, std::span<const Key> keys,
                                                  std::span<const double> scores, std::vector<double>& p) {
    const double lse = before(model, r, keys, scores, p), max = largest(scores, model.sink(r));
    for (double& value : p) value *= lse == kNegInf ? 1 : std::exp(lse - max);
    return lse;
  }));
}

/// Masked keys of the last page get score 0 instead of -inf; their V does not count.
Suspects masked_as_zero(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_row(*f, [f](std::int64_t r, std::int64_t q_pos) { return f->hull(r, q_pos).end % f->page_size != 0; }))
    return cannot_show("every row ends at the end of a page: no key is masked");
  return one(function_changed(&Model::sink, [f](const auto& before, const Row& r) {
    const double sink = before(r);
    const std::int64_t end = f->hull(r.req, r.q_pos).end;
    const auto masked = static_cast<double>(semantics::round_up(end, f->page_size) - end);
    if (masked <= 0) return sink;
    return sink == kNegInf
               ? std::log(masked)
               : std::max(sink, 0.0) + std::log(std::exp(sink - std::max(sink, 0.0)) + masked * std::exp(-std::max(sink, 0.0)));
  }));
}

Suspects weights_in_fp8(const Clues& e) {
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  const auto plant =
      function_changed(&Model::softmax, [](const auto& before, const Model& model, const Row& r, std::span<const Key> keys,
                                           std::span<const double> scores, std::vector<double>& p) {
        const double lse = before(model, r, keys, scores, p), max = largest(scores, model.sink(r));
        const double unit = lse == kNegInf ? 1 : std::exp(lse - max);
        for (double& value : p) {
          if (std::isnan(value)) continue;
          const std::uint8_t code = semantics::fp8_encode<semantics::E4m3fn>(static_cast<float>(value * unit));
          value = semantics::fp8_decode<semantics::E4m3fn>(code) / unit;
        }
        return lse;
      });
  return if_it_changes_by(e, 16, plant, "the rounding of weights stays within that of the output");
}

/// The lse as `wrong(true lse, maximum, sink)`.
using WrongLse = double (*)(double lse, double max, double sink);
Find lse(WrongLse wrong) {
  return [wrong](const Clues& e) {
    if (!e.facts.batch.lse.present()) return cannot_show(kNoLse);
    if (e.facts.num_tokens == 0) return cannot_show("the batch has no rows");
    return one(
        function_changed(&Model::softmax, [wrong](const auto& before, const Model& model, const Row& r, std::span<const Key> keys,
                                                  std::span<const double> scores, std::vector<double>& p) {
          const double right = before(model, r, keys, scores, p);
          return right == kNegInf ? right : wrong(right, largest(scores, model.sink(r)), model.sink(r));
        }));
  };
}
Suspects lse_is_max(const Clues& e) {
  if (!scores_matter(e.facts)) return cannot_show(e.facts.batch.lse.present() ? kOneKey : kNoLse);
  return lse([](double, double max, double) { return max; })(e);
}
Suspects lse_without_sink(const Clues& e) {
  if (!e.facts.options.sinks.present()) return cannot_show("there are no sinks");
  return lse([](double value, double, double sink) { return value + std::log(std::max(0.0, 1 - std::exp(sink - value))); })(e);
}

/// lse is [num_tokens, num_q_heads]; merge kernels of others take [num_q_heads, num_tokens].
Suspects lse_transposed(const Clues& e) {
  const std::int64_t heads = e.facts.num_q_heads, tokens = e.facts.num_tokens;
  if (!e.facts.batch.lse.present()) return cannot_show(kNoLse);
  if (heads < 2 || tokens < 2) return cannot_show("one head or one row: both orders are the same");
  return one([heads, tokens](Model& m) {
    m.finish = [heads, tokens, right = m](const Row& r, RowResult& result) {
      right.finish(r, result);
      const std::int64_t flat = r.token * heads + r.head;
      const RowHead source{flat % tokens, flat / tokens};
      result.lse = evaluate(right, std::span(&source, 1)).front().lse;
    };
  });
}

}  // namespace

void add_softmax(std::vector<Fault>& list) {
  const Family add{list, "softmax"};
  const char* const kBase = "2^x needs scores times log2(e); exp(x) needs them as they are";
  const char* const kDenominator = "the denominator is sum_k exp(s_k - m), plus exp(sink - m), and nothing else";
  const char* const kLse = "lse = m + log(denominator), natural logarithm, the sink included";
  add("exp2_without_log2e", "takes 2^score for exp(score)", "", kBase,
      weight([](double s, double max) { return std::exp2(s - max); }));
  add("log2e_without_exp2", "multiplies the scores by log2(e) and still takes exp", "", kBase,
      weight([](double s, double max) { return std::exp((s - max) / std::log(2.0)); }));
  add("no_max_subtraction", "takes exp of a score without subtracting the maximum", "", "exp overflows f32 from 88.7 on", no_max);
  add("maximum_not_rescaled", "does not rescale what it has summed when a later tile raises the maximum", "",
      "multiply the accumulator and the denominator by exp(old max - new max)", not_rescaled);
  add("denominator_starts_at_one", "starts the denominator at 1, as if there were one more key with score 0", "", kDenominator,
      starts_at_one);
  add("output_not_normalised", "does not divide by the denominator", "", kDenominator, not_normalised);
  add("masked_keys_in_denominator", "counts masked keys of the last page with score 0 in the denominator", "", kDenominator,
      masked_as_zero);
  add("weights_rounded_to_fp8", "rounds the softmax weights to fp8_e4m3fn", "", "keep the weights in f32 or 16 bits",
      weights_in_fp8);
  add("lse_base_2", "writes lse to base 2", "sglang#40903", kLse,
      lse([](double value, double, double) { return value / std::log(2.0); }));
  add("lse_without_max", "writes the lse of the shifted scores, without the maximum", "", kLse,
      lse([](double value, double max, double) { return value - max; }));
  add("lse_is_max", "writes the maximum in place of the lse", "", kLse, lse_is_max);
  add("lse_transposed", "writes lse as [num_q_heads, num_tokens]", "", "lse is [num_tokens, num_q_heads]", lse_transposed);
  add("lse_without_sink", "leaves the sink out of the lse that it writes", "", kLse, lse_without_sink);
}

}  // namespace quire::faults_detail
