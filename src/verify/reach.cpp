// SPDX-License-Identifier: Apache-2.0
// See reach.h.
#include "verify/reach.h"

#include <algorithm>

#include "text/formatted.h"

namespace quire::verify_detail {
namespace {

constexpr const char* kForms[] = {"none", "tensor", "head", "token"};

/// Returns every value that a type, layout, form or index may have, by the names of Reach::add().
std::vector<std::string> all_values() {
  std::vector<std::string> all;
  for (const char* cache : {"f32", "f16", "bf16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz", "i8", "fp8_ds_mla"})
    for (const char* query : {"f32", "f16", "bf16"})
      if (std::string(cache) != "f32" || std::string(query) == "f32") all.push_back(formatted("{} over {}", query, cache));
  for (const char* layout : {"nhd", "hnd", "packed"}) all.push_back(formatted("layout {}", layout));
  for (const char* scale : {"k_scale", "v_scale"})
    for (const char* form : kForms) all.push_back(formatted("{} {}", scale, form));
  for (const char* index : {"i32", "i64"}) all.push_back(formatted("{} indices", index));
  return all;
}

/// Options by name, and whether a line has them. Numbers have a range beside.
std::vector<std::pair<const char*, bool>> options_of(const ProblemLine& line) {
  const Problem& p = line.problem;
  const auto any = [&](auto&& has) { return std::ranges::any_of(p.reqs, has); };
  return {{"sliding_window", p.sliding_window.has_value()},
          {"logits_soft_cap", p.logits_soft_cap.has_value()},
          {"softmax_scale", p.softmax_scale.has_value()},
          {"ALiBi", p.alibi},
          {"sinks", p.sinks},
          {"lse", p.lse},
          {"shared pages", line.shared_pages > 0 || !line.branches.empty()},
          {"rows outside the cache", any([](const Request& r) { return r.cached_len < r.seq_len(); })},
          {"requests without rows", any([](const Request& r) { return r.query_len == 0; })},
          {"requests that are not causal", any([](const Request& r) { return !r.causal; })},
          {"q_begin", p.has_q_begin},
          {"key_begin", p.has_key_begin},
          {"window_right", p.window_right.has_value()},
          {"attention_chunk", p.attention_chunk.has_value()},
          {"a visible prefix", p.has_prefix},
          {"spans", p.has_spans},
          {"spans beyond the window", p.spans_beyond_window},
          {"trees", p.has_tree},
          {"a head_dim of V's own", !p.has_equal_dims()},
          {"V in K's rows", p.latent}};
}

}  // namespace

void ReachCount::range(const char* name, double value) {
  const auto [at, fresh] = ranges_.try_emplace(name, value, value);
  at->second.first = std::min(at->second.first, value);
  at->second.second = std::max(at->second.second, value);
}

void ReachCount::add(const ProblemLine& line) {
  const Problem& p = line.problem;
  seen_.insert(formatted("{} over {}", name(p.q_dtype), p.cache_types()));
  seen_.insert(formatted("layout {}", name(p.layout)));
  seen_.insert(formatted("k_scale {}", kForms[static_cast<int>(p.k_scale)]));
  seen_.insert(formatted("v_scale {}", kForms[static_cast<int>(p.v_scale)]));
  seen_.insert(formatted("{} indices", name(line.index_dtype)));
  range("requests", static_cast<double>(p.reqs.size()));
  range("rows of the batch", static_cast<double>(p.num_tokens()));
  range("head_dim", static_cast<double>(p.head_dim));
  range("page_size", static_cast<double>(p.page_size));
  range("KV heads", static_cast<double>(p.num_kv_heads));
  range("query heads per KV head", static_cast<double>(p.group()));
  for (const Request& r : p.reqs) {
    range("rows of a request", static_cast<double>(r.query_len));
    range("context of a request", static_cast<double>(r.context_len));
  }
  if (p.sliding_window) range("sliding_window", static_cast<double>(*p.sliding_window));
  if (p.logits_soft_cap) range("logits_soft_cap", static_cast<double>(*p.logits_soft_cap));
  if (p.softmax_scale) range("softmax_scale", static_cast<double>(*p.softmax_scale));
  for (const auto& [option, present] : options_of(line))
    if (present) seen_.insert(option);
}

Reach ReachCount::reach() const {
  Reach reach{ranges_, {}};
  for (const std::string& value : all_values())
    if (!seen_.contains(value)) reach.never.push_back(value);
  for (const auto& [option, present] : options_of({}))
    if (!seen_.contains(option)) reach.never.emplace_back(option);
  return reach;
}

}  // namespace quire::verify_detail
