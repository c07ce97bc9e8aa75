// SPDX-License-Identifier: Apache-2.0
// The score of a key: scale * dot, soft cap. (ALiBi: alibi.cpp; the softmax over scores: softmax.cpp.)
#include <algorithm>
#include <cmath>

#include "faults/families.h"
#include "semantics/ceil_div.h"
#include "semantics/dtype.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

double real(std::int64_t n) { return static_cast<double>(n); }

/// Another softmax_scale, unless it is the right one.
Suspects scale(const Clues& e, double value, const char* same) {
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  const Facts* f = &e.facts;
  const double right = Model(*f).softmax_scale(Row{});
  if (std::fabs(value - right) < 1e-3 * right) return cannot_show(same);
  return one(function_set(&Model::softmax_scale, [value](const Row&) { return value; }),
             formatted("{:.4g} instead of {:.4g}", value, right));
}

Suspects from_heads(const Clues& e) {
  if (e.facts.options.softmax_scale) return cannot_show("softmax_scale is given: no default is used");
  return scale(e, 1 / std::sqrt(real(e.facts.num_q_heads)), "as many query heads as dims: both defaults are the same");
}

Suspects score_step_ignored(const Clues& e) {
  if (!e.facts.options.softmax_scale) return cannot_show("softmax_scale is not given");
  return scale(e, 1 / std::sqrt(real(e.facts.head_dim)), "the softmax_scale that is given is the default");
}

Suspects unscaled(const Clues& e) { return scale(e, 1, "softmax_scale is 1"); }

Suspects scale_applied_twice(const Clues& e) {
  const double right = Model(e.facts).softmax_scale(Row{});
  return scale(e, right * right, "softmax_scale is 1");
}

Suspects scale_inverted(const Clues& e) {
  const double right = Model(e.facts).softmax_scale(Row{});
  return scale(e, 1 / right, "softmax_scale is 1");
}

Suspects from_padded(const Clues& e) {
  const Facts& f = e.facts;
  if (f.options.softmax_scale) return cannot_show("softmax_scale is given: no default is used");
  if (is_power_of_two(f.head_dim)) return cannot_show(formatted("head_dim {} is a power of two: nothing is padded", f.head_dim));
  if (!scores_matter(f)) return cannot_show(kOneKey);
  Suspects s;
  std::vector<std::int64_t> sizes;
  for (const std::int64_t padded : {ceil_power_of_two(f.head_dim), semantics::round_up(f.head_dim, 64),
                                    semantics::round_up(f.head_dim, 32), semantics::round_up(f.head_dim, 16)})
    if (padded != f.head_dim && std::find(sizes.begin(), sizes.end(), padded) == sizes.end()) sizes.push_back(padded);
  for (const std::int64_t padded : sizes)
    s.list.push_back({formatted("1 / sqrt({})", padded),
                      function_set(&Model::softmax_scale, [padded](const Row&) { return 1 / std::sqrt(real(padded)); })});
  return s;
}

Suspects qk_ignored(const Clues& e) {
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  return one(function_changed(&Model::score, [](const auto& before, const Model& model, const Row& r, std::int64_t k,
                                                double dot) { return before(model, r, k, std::isnan(dot) ? dot : 0.0); }));
}

Suspects fewer_dims(const Clues& e) {
  const std::int64_t d = e.facts.head_dim;
  if (d == 1) return cannot_show("head_dim is 1");
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  Suspects s;
  for (const std::int64_t cut : shorter_dims(d))
    s.list.push_back({formatted("the first {} of {} dims", cut, d), [cut](Model& m) { m.dims = std::min(m.dims, cut); }});
  return s;
}

Suspects query_in_fp8(const Clues& e) {
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  const auto plant = function_changed(&Model::query, [](const auto& before, const Row& r, std::int64_t d) -> double {
    const std::uint8_t code = semantics::fp8_encode<semantics::E4m3fn>(static_cast<float>(before(r, d)));
    return semantics::fp8_decode<semantics::E4m3fn>(code);
  });
  return one(plant);
}

Suspects no_cap(const Facts& f) { return cannot_show(f.options.logits_soft_cap ? kOneKey : "no soft cap is set"); }

Find cap(double (*wrong)(double score, double cap)) {
  return [wrong](const Clues& e) {
    const Facts& f = e.facts;
    if (!f.options.logits_soft_cap || !scores_matter(f)) return no_cap(f);
    const double limit = *f.options.logits_soft_cap;
    return one(function_set(&Model::cap, [limit, wrong](const Row&, double s) { return wrong(s, limit); }));
  };
}
Suspects cap_not_multiplied(const Clues& e) {
  const Facts& f = e.facts;
  if (f.options.logits_soft_cap && *f.options.logits_soft_cap == 1) return cannot_show("the soft cap is 1");
  return cap([](double s, double limit) { return std::tanh(s / limit); })(e);
}

Suspects cap_before_scale(const Clues& e) {
  const Facts& f = e.facts;
  if (!f.options.logits_soft_cap || !scores_matter(f)) return no_cap(f);
  if (Model(f).softmax_scale(Row{}) == 1) return cannot_show("softmax_scale is 1: the order does not matter");
  return one(function_set(&Model::score, [](const Model& model, const Row& r, std::int64_t k, double dot) {
    return model.softmax_scale(r) * model.cap(r, dot) + model.bias(r, k);
  }));
}

Suspects cap_after_alibi(const Clues& e) {
  const Facts& f = e.facts;
  if (!f.options.logits_soft_cap || !scores_matter(f)) return no_cap(f);
  if (!f.options.alibi_slopes.present()) return cannot_show("there are no ALiBi slopes");
  return one(function_set(&Model::score, [](const Model& model, const Row& r, std::int64_t k, double dot) {
    return model.cap(r, model.softmax_scale(r) * dot + model.bias(r, k));
  }));
}

/// Scores kept in a 16-bit type between QK and the softmax. Shown by a few rows.
Suspects scores_in_bf16(const Clues& e) {
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  const auto plant = function_changed(
      &Model::score, [](const auto& before, const Model& model, const Row& r, std::int64_t k, double dot) -> double {
        return semantics::bf16_decode(semantics::bf16_encode(static_cast<float>(before(model, r, k, dot))));
      });
  return if_it_changes_by(e, 16, plant, "the rounding of scores stays within that of the output");
}

}  // namespace

void add_scores(std::vector<Fault>& list) {
  const Family add{list, "scores"};
  const char* const kScale = "print the scale that the kernel receives: 1 / sqrt(head_dim) unless given, applied once";
  const char* const kOrder = "the order is scale, soft cap, ALiBi";
  add("scale_from_query_heads", "takes the default softmax_scale from the number of query heads instead of head_dim",
      "vllm#31380", "look at which dimension of query the default is computed from", from_heads);
  add("scale_ignored", "uses the default softmax_scale although another is given", "", kScale, score_step_ignored);
  add("scale_missing", "does not scale the scores", "", kScale, unscaled);
  add("scale_applied_twice", "applies softmax_scale twice", "", kScale, scale_applied_twice);
  add("scale_inverted", "divides by softmax_scale", "", kScale, scale_inverted);
  add("scale_from_padded_head_dim", "takes the default softmax_scale from a padded head_dim", "", kScale, from_padded);
  add("qk_ignored", "ignores the products of query and key (uniform weights)", "",
      "look for a score buffer that is never filled; data near zero hide this from tests", qk_ignored);
  add("query_tail_dims_dropped", "leaves the last dims out of the dot product", "vllm#34570",
      "look at the loop over dims: a vector width or a tile that does not divide head_dim", fewer_dims);
  add("query_rounded_to_fp8", "rounds the query to fp8_e4m3fn", "", "look for a quantised QK path without a query scale",
      query_in_fp8);
  add("soft_cap_ignored", "ignores the soft cap", "vllm#8660", "look at the path that serves these rows: does it take a cap?",
      cap([](double s, double) { return s; }));
  add("soft_cap_clips", "clips scores at the cap instead of bending them with tanh", "", "cap * tanh(score / cap)",
      cap([](double s, double limit) { return std::clamp(s, -limit, limit); }));
  add("soft_cap_not_multiplied_back", "takes tanh(score / cap) and does not multiply by cap", "", "cap * tanh(score / cap)",
      cap_not_multiplied);
  add("soft_cap_before_scale", "caps the scores before it scales them", "", kOrder, cap_before_scale);
  add("soft_cap_after_alibi", "adds ALiBi before the soft cap", "", kOrder, cap_after_alibi);
  add("scores_rounded_to_bf16", "keeps the scores in bf16", "", "keep scores in f32 until the softmax", scores_in_bf16);
}

}  // namespace quire::faults_detail
