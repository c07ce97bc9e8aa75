// SPDX-License-Identifier: Apache-2.0
// Stage: plan. Kernels that vLLM would run for a problem on an AMD GPU: its use_rocm_custom_paged_attention of 2026-01,
// condition by condition (window, dtype, head_dim, page_size, G, max_seq_len, ALiBi, cache type, sinks), and the hazards of that
// choice.
#include <algorithm>

#include "plan/vllm_hazards.h"
#include "quire/plan.hpp"
#include "quire/predict.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

using plan_detail::VllmFacts;

constexpr std::string_view kArchs[] = {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"};
constexpr std::int64_t kMaxSeqLen = 131072;  // limit in vLLM's use_rocm_custom_paged_attention, 2026-01

Status check_arguments(const Problem& p, std::string_view arch) {
  if (std::find(std::begin(kArchs), std::end(kArchs), arch) == std::end(kArchs))
    return {Code::invalid_argument,
            formatted("no vLLM predicate for '{}'; expected one of {}", arch.substr(0, 64), fmt::join(kArchs, ", "))};
  const bool sizes = p.num_kv_heads >= 1 && p.num_q_heads >= 1 && p.head_dim >= 1 && p.page_size >= 1;
  if (!sizes || p.num_q_heads % p.num_kv_heads != 0)
    return {Code::invalid_argument,
            formatted("heads={}:{} d={} page={}: sizes must be >= 1 and query heads a multiple of KV heads", p.num_q_heads,
                      p.num_kv_heads, p.head_dim, p.page_size)};
  if (!p.has_equal_dims())
    return {Code::invalid_argument,
            formatted("dv={}: vLLM's op has one head size for K and V, here {}", p.out_dim(), p.head_dim)};
  return {};
}

/// vLLM's conditions in its own order; each that fails gives one reason.
std::vector<std::string> failed_conditions(const Problem& p, bool is_gfx9) {
  std::vector<std::string> failed;
  const auto need = [&failed](bool holds, std::string reason) {
    if (!holds) failed.push_back(std::move(reason));
  };
  const std::int64_t min_group = is_gfx9 ? 1 : 3;
  const std::string_view cache = plan_detail::vllm_cache_dtype(p);
  need(!p.sliding_window, formatted("sliding_window = {} is set", p.sliding_window.value_or(0)));
  need(p.q_dtype == DType::f16 || p.q_dtype == DType::bf16, formatted("query dtype = {} is not f16 or bf16", name(p.q_dtype)));
  need(p.head_dim == 128 || (is_gfx9 && p.head_dim == 64),
       formatted("head_dim = {} is not {}", p.head_dim, is_gfx9 ? "64 or 128" : "128"));
  need(p.page_size == 16 || (is_gfx9 && p.page_size == 32),
       formatted("page_size = {} is not {}", p.page_size, is_gfx9 ? "16 or 32" : "16"));
  need(p.group() >= min_group && p.group() <= 16, formatted("G = {} outside {}..16", p.group(), min_group));
  need(p.max_seq_len() <= kMaxSeqLen, formatted("max_seq_len = {} over {}", p.max_seq_len(), kMaxSeqLen));
  need(is_gfx9 || !p.alibi, "alibi_slopes are given");
  need(is_gfx9 || cache == "auto", formatted("kv_cache_dtype = {} is not auto", cache.empty() ? name(p.kv_dtype) : cache));
  need(!p.sinks, "sinks are given");
  return failed;
}

std::int64_t count_reqs(const Problem& p, bool (*pick)(std::int64_t)) {
  return std::count_if(p.reqs.begin(), p.reqs.end(), [pick](const Request& r) { return pick(r.query_len); });
}

std::string render(const VllmFacts& f, const VllmChoice& c) {
  const std::int64_t prefill_rows = f.problem.num_tokens() - f.decode_reqs;
  std::string text = formatted("problem   {}\n", to_string(f.problem));
  text += formatted("as        vLLM 2026-01 on {}, op chunked_prefill_paged_decode, VLLM_ROCM_CUSTOM_PAGED_ATTN=1\n", f.arch);
  text += c.prefill_kernel.empty()
              ? "prefill   no request has query_len > 1\n"
              : formatted("prefill   {} ({} rows of {} requests)\n", c.prefill_kernel, prefill_rows, f.prefill_reqs);
  text += formatted("decode    {} ({} rows)\n", c.decode_kernel, f.decode_reqs);
  text += f.custom ? "why       every condition of the custom kernel holds\n"
                   : "why       the custom kernel paged_attention_rocm is not used:\n";
  for (const std::string& reason : c.failed) text += formatted("          - {}\n", reason);
  if (!c.notes.empty()) text += "hazards\n";
  for (const std::string& note : c.notes) text += formatted("          - {}\n", note);
  return text;
}

}  // namespace

Result<VllmChoice> explain_as_vllm(const Problem& problem, std::string_view arch) {
  if (Status s = check_arguments(problem, arch); !s.ok()) return s;
  const bool is_gfx9 = arch.starts_with("gfx9");
  VllmChoice choice;
  choice.failed = failed_conditions(problem, is_gfx9);
  VllmFacts facts{problem, arch, is_gfx9, choice.failed.empty()};
  facts.prefill_reqs = count_reqs(problem, [](std::int64_t query_len) { return query_len > 1; });
  facts.decode_reqs = count_reqs(problem, [](std::int64_t query_len) { return query_len == 1; });
  facts.empty_reqs = count_reqs(problem, [](std::int64_t query_len) { return query_len == 0; });
  if (facts.prefill_reqs > 0) choice.prefill_kernel = "context_attention_fwd";
  choice.decode_kernel = facts.custom ? "paged_attention_rocm" : "kernel_paged_attention_2d";
  choice.notes = plan_detail::vllm_hazards(facts);
  choice.text = render(facts, choice);
  return choice;
}

}  // namespace quire
