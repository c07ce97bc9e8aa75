// SPDX-License-Identifier: Apache-2.0
// Stage: plan. The checks between a plan and the batch that it is used for.
#include "plan/fits.h"
#include "text/formatted.h"

#include "device/staging.h"
#include "quire/contract.hpp"
#include "semantics/page_walk.h"

namespace quire::plan_detail {

Status stale_plan(const std::string& what) {
  return {Code::invalid_argument, "attend: the plan was made for another batch: " + what + "; plan again for this step"};
}

Status shapes_fit(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options) {
  const Problem& p = plan.problem;
  const Tensor& q = batch.query;
  if (p.num_q_heads != q.shape[1] || p.head_dim != q.shape[2] || p.num_kv_heads != num_kv_heads(cache) ||
      p.page_size != page_size(cache))
    return stale_plan(formatted("heads, head_dim or page_size differ (plan {}:{} d={} page={}, batch {}:{} d={} page={})",
                                p.num_q_heads, p.num_kv_heads, p.head_dim, p.page_size, q.shape[1], num_kv_heads(cache),
                                q.shape[2], page_size(cache)));
  if (p.q_dtype != q.dtype || p.kv_dtype != cache.k.dtype || p.layout != cache.layout)
    return stale_plan(formatted("dtype or layout differs (plan q={} kv={} layout={}, batch q={} kv={} layout={})",
                                name(p.q_dtype), name(p.kv_dtype), name(p.layout), name(q.dtype), name(cache.k.dtype),
                                name(cache.layout)));
  if (p.value_dtype() != cache.v.dtype)
    return stale_plan(formatted("dtype of V differs (plan {}, batch {})", name(p.value_dtype()), name(cache.v.dtype)));
  if (p.out_dim() != v_head_dim(cache))
    return stale_plan(formatted("v_head_dim differs (plan {}, batch {})", p.out_dim(), v_head_dim(cache)));
  if (p.out_dtype() != batch.output.dtype)
    return stale_plan(formatted("output dtype differs (plan {}, batch {})", name(p.out_dtype()), name(batch.output.dtype)));
  if (p.sliding_window != options.sliding_window)
    return stale_plan(formatted("sliding_window differs (plan {}, options {}; 0 = none)", p.sliding_window.value_or(0),
                                options.sliding_window.value_or(0)));
  if (p.window_right != options.window_right)
    return stale_plan(formatted("window_right differs (plan {}, options {}; -1 = none)", p.window_right.value_or(-1),
                                options.window_right.value_or(-1)));
  if ((p.k_scale == ScaleKind::per_token) != (cache.k_scale.rank == 3) ||
      (p.v_scale == ScaleKind::per_token) != (cache.v_scale.rank == 3))
    return stale_plan("tokens have scales of their own in one of them only");
  if (p.causal != options.causal || p.has_causal != batch.causal.present() || p.has_q_begin != batch.q_begin.present())
    return stale_plan("causal or q_begin is given in one of them only, or options.causal differs");
  if (p.attention_chunk != options.attention_chunk)
    return stale_plan(formatted("attention_chunk differs (plan {}, options {}; 0 = none)", p.attention_chunk.value_or(0),
                                options.attention_chunk.value_or(0)));
  if (p.has_prefix != (options.prefix_len || batch.prefix_lens.present()) || p.has_spans != batch.spans.present() ||
      p.has_tree != batch.tree_mask.present() || p.spans_beyond_window != options.spans_beyond_window)
    return stale_plan("a prefix, spans or a tree is given in one of them only, or options.spans_beyond_window differs");
  return {};
}

Status counts_within(const Plan& plan, const Batch& batch) {
  const std::int64_t reqs = batch.seq_lens.shape[0], tokens = batch.query.shape[0];
  if (reqs <= plan.bounds.num_reqs && tokens <= plan.bounds.num_tokens) return {};
  return stale_plan(formatted("{} requests and {} tokens, planned for at most {} and {}", reqs, tokens, plan.bounds.num_reqs,
                              plan.bounds.num_tokens));
}

Status lengths_within(const Plan& plan, const Batch& batch) {
  device::Staging staging;
  Tensor starts = batch.query_start_loc, seq_lens = batch.seq_lens;
  for (Tensor* t : {&starts, &seq_lens})
    if (Status s = staging.stage(*t); !s.ok()) return s;
  const semantics::IndexView start = semantics::index_view(starts), seq_len = semantics::index_view(seq_lens);
  for (std::int64_t r = 0; r < seq_lens.shape[0]; ++r) {
    const std::int64_t query_len = start[r + 1] - start[r];
    if (query_len > plan.bounds.max_query_len)
      return stale_plan(formatted("request {} has query_len {}, planned for at most {} (PlanSettings::max_query_len)", r,
                                  query_len, plan.bounds.max_query_len));
    if (!plan.bounds.seq_len_from_shapes && seq_len[r] > plan.bounds.max_seq_len)
      return stale_plan(formatted("request {} has seq_len {}, planned for at most {} (PlanSettings::max_seq_len)", r, seq_len[r],
                                  plan.bounds.max_seq_len));
  }
  return {};
}

Status workspace_fits(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                      std::span<const std::byte> workspace) {
  if (workspace.size() < workspace_bytes(plan))
    return {Code::invalid_argument, formatted("attend: workspace has {} bytes, the plan needs {} (workspace_bytes(plan))",
                                              workspace.size(), workspace_bytes(plan))};
  if (workspace.data() == nullptr && workspace_bytes(plan) > 0)
    return {Code::invalid_argument, formatted("attend: workspace is null, expected {} bytes", workspace_bytes(plan))};
  if (reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 != 0)
    return {Code::invalid_argument, "attend: workspace is not aligned to 64 bytes"};
  return check_workspace(batch, cache, options, workspace).status();
}

}  // namespace quire::plan_detail
