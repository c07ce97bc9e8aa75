// SPDX-License-Identifier: Apache-2.0
// ALiBi: slope_h * (k - q_pos), any sign of slope, added after the soft cap.

#include <algorithm>

#include "faults/families.h"
#include "semantics/dtype.h"

namespace quire::faults_detail {
namespace {

template <typename Predicate>
bool any_slope(const Facts& f, Predicate&& holds) {
  for (std::int64_t h = 0; h < f.num_q_heads; ++h)
    if (holds(h)) return true;
  return false;
}

/// Returns why no mistake about slopes can show; empty if one can.
std::string hidden(const Facts& f) {
  if (!f.options.alibi_slopes.present()) return "there are no ALiBi slopes";
  if (!any_slope(f, [&](std::int64_t h) { return slope_of(f, h) != 0; })) return "all ALiBi slopes are 0";
  const bool any = any_row(f, [&](std::int64_t r, std::int64_t q_pos) { return f.num_visible(r, q_pos) > 1; });
  return any ? "" : "no row sees two keys";
}

/// The bias as `wrong(row, k)`.
Suspects bias(const Clues& e, std::function<double(const Row&, std::int64_t)> wrong) {
  if (const std::string why = hidden(e.facts); !why.empty()) return cannot_show(why);
  return one([wrong = std::move(wrong)](Model& m) { m.bias = wrong; });
}

Suspects ignored(const Clues& e) {
  return bias(e, [](const Row&, std::int64_t) { return 0.0; });
}

Suspects sign(const Clues& e) {
  return bias(
      e, [f = &e.facts](const Row& r, std::int64_t k) { return slope_of(*f, r.query_head) * static_cast<double>(r.q_pos - k); });
}

Suspects negative(const Clues& e) {
  if (!any_slope(e.facts, [&](std::int64_t h) { return slope_of(e.facts, h) < 0; }))
    return cannot_show(e.facts.options.alibi_slopes.present() ? "no slope is negative" : "there are no ALiBi slopes");
  return bias(e, [f = &e.facts](const Row& r, std::int64_t k) {
    return std::max(slope_of(*f, r.query_head), 0.0) * static_cast<double>(k - r.q_pos);
  });
}

/// A mask on the sign of the bias, for kernels that take slopes to be positive: a head with a negative slope sees its own key
/// only.
Suspects positive_masked(const Clues& e) {
  const Facts* f = &e.facts;
  if (const std::string why = hidden(*f); !why.empty()) return cannot_show(why);
  if (!any_slope(*f, [f](std::int64_t h) { return slope_of(*f, h) < 0; })) return cannot_show("no slope is negative");
  return one(function_changed(&Model::bias, [](const auto& before, const Row& r, std::int64_t k) {
    const double bias = before(r, k);
    return bias > 0 ? kNegInf : bias;
  }));
}

/// The slope of head `of(h)` for head h.
Suspects of_head(const Clues& e, const std::function<std::int64_t(std::int64_t)>& of, const char* same) {
  const Facts* f = &e.facts;
  if (!any_slope(*f, [&](std::int64_t h) { return slope_of(*f, h) != slope_of(*f, of(h)); }))
    return cannot_show(f->options.alibi_slopes.present() ? same : "there are no ALiBi slopes");
  return bias(
      e, [f, of](const Row& r, std::int64_t k) { return slope_of(*f, of(r.query_head)) * static_cast<double>(k - r.q_pos); });
}

Suspects kv_head(const Clues& e) {
  return of_head(
      e, [group = e.facts.group](std::int64_t h) { return h / group; }, "every head has the slope of its KV head index");
}

Suspects next_head(const Clues& e) {
  return of_head(e, [n = e.facts.num_q_heads](std::int64_t h) { return (h + 1) % n; }, "all slopes are the same");
}

/// Along a row the shift is constant, and softmax cancels it, unless something absolute stands beside: a sink or an exported lse.
Suspects origin(const Clues& e) {
  const Facts* f = &e.facts;
  if (const std::string why = hidden(*f); !why.empty()) return cannot_show(why);
  if (!f->options.sinks.present() && !f->batch.lse.present())
    return cannot_show("there are no sinks and no lse: a shift along a row cancels in the softmax");
  Suspects s;
  const auto add = [&](const char* detail, auto of, bool shows) {
    if (!shows) return;
    s.list.push_back({detail, function_set(&Model::bias, [f, of](const Row& r, std::int64_t k) {
                        return slope_of(*f, r.query_head) * static_cast<double>(k - of(r));
                      })});
  };
  const bool chunks = f->max_query_len() > 1;
  add("distances from context_len", [](const Row& r) { return r.context_len(); }, chunks);
  add("distances from the last row", [](const Row& r) { return r.seq_len - 1; }, chunks);
  add("distances from position 0", [](const Row&) { return std::int64_t{0}; }, true);
  return s;
}

Suspects before_scale(const Clues& e) {
  const Facts& f = e.facts;
  if (const std::string why = hidden(f); !why.empty()) return cannot_show(why);
  if (Model(f).softmax_scale(Row{}) == 1) return cannot_show("softmax_scale is 1: the order does not matter");
  return one([](Model& m) {
    m.bias = [before = m.bias, scale = m.softmax_scale](const Row& r, std::int64_t k) { return scale(r) * before(r, k); };
  });
}

Suspects in_f16(const Clues& e) {
  if (const std::string why = hidden(e.facts); !why.empty()) return cannot_show(why);
  const auto plant = function_changed(&Model::bias, [](const auto& before, const Row& r, std::int64_t k) -> double {
    return semantics::bf16_decode(semantics::bf16_encode(static_cast<float>(before(r, k))));
  });
  return if_it_changes_by(e, 8, plant, "the rounding of the bias stays within that of the output");
}

}  // namespace

void add_alibi(std::vector<Fault>& list) {
  const Family add{list, "alibi"};
  const char* const kSlopes = "slope_h * (k - q_pos), with the slope of the query head";
  add("alibi_ignored", "ignores the ALiBi slopes", "vllm#57614", "look at the path that serves these rows: does it take slopes?",
      ignored);
  add("alibi_sign_flipped", "adds slope * (q_pos - k)", "", kSlopes, sign);
  add("negative_slopes_as_zero", "takes negative ALiBi slopes for 0", "", "slopes may have any sign", negative);
  add("positive_bias_masked", "masks every key with a positive ALiBi bias, as if it lay in the future", "",
      "slopes may have any sign: test k <= q_pos, not the bias", positive_masked);
  add("alibi_slope_of_kv_head", "takes the slope at the KV head's index", "", kSlopes, kv_head);
  add("alibi_slope_of_next_head", "takes the slope of the next head", "", kSlopes, next_head);
  add("alibi_origin_shifted", "counts ALiBi distances from a position other than the row's own", "vllm#945",
      "a shift cancels in the softmax, but not beside a sink and not in an lse", origin);
  add("alibi_before_scale", "adds the ALiBi bias before it applies softmax_scale", "", "the order is scale, soft cap, ALiBi",
      before_scale);
  add("alibi_bias_in_bf16", "rounds the ALiBi bias to bf16", "", "compute the bias in f32", in_f16);
}

}  // namespace quire::faults_detail
