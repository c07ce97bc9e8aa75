// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/resolve.h"
#include "text/formatted.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/device_workspace.h"

namespace quire::gpu {
namespace {

static_assert(sizeof(WorkSlice) == plan_detail::kSliceBytes && sizeof(CallState) == plan_detail::kCallStateBytes);

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }

/// Strides of [tokens, heads, dim].
semantics::KvStrides row_strides(const Tensor& t) { return {0, t.stride[1], t.stride[0], 0, t.stride[2], t.shape[2]}; }

RowSource rows_of(const Tensor& t) {
  if (!t.present()) return {};
  return {t.data, t.dtype, row_strides(t)};
}

LseRows lse_of(const Tensor& t) {
  if (!t.present()) return {};
  return {static_cast<float*>(t.data), t.stride[0], t.stride[1]};
}

/// A scalar or [1] has stride 0: one value for all heads. Scales of tokens are no such values.
PerHead per_head(const Tensor& t) {
  if (!t.present() || t.rank == 3) return {};
  return {static_cast<const float*>(t.data), t.rank == 1 && t.shape[0] > 1 ? t.stride[0] : 0};
}

semantics::IndexView index_of(const Tensor& t) {
  if (!t.present()) return {};
  return semantics::index_view(t);
}

WorkList work_list(const Plan& plan, std::byte* workspace, std::size_t index) {
  const plan_detail::DeviceList& list = plan.work().lists[index];
  const plan_detail::ListSpace at = plan_detail::device_workspace(plan).lists[index];
  WorkList w;
  w.slices = reinterpret_cast<WorkSlice*>(workspace + at.slices);
  w.num_slices = reinterpret_cast<std::int32_t*>(workspace + at.num_slices);
  w.next_item = reinterpret_cast<std::int32_t*>(workspace + at.next_item);
  w.parts_done = reinterpret_cast<std::int32_t*>(workspace + at.parts_done);
  w.partial_acc = reinterpret_cast<float*>(workspace + at.partial_acc);
  w.partial_states = reinterpret_cast<float*>(workspace + at.partial_states);
  w.division.units = reinterpret_cast<std::int32_t*>(workspace + at.units);
  set_list(w, list, plan.problem.num_kv_heads);
  return w;
}

}  // namespace

namespace {

/// Chunks, prefixes, spans and trees.
void set_shapes(AttendArgs& a, const Batch& batch, const Options& options) {
  a.spans_beyond_window = options.spans_beyond_window;
  semantics::Mask mask;
  mask.set_chunk(options.attention_chunk.value_or(0));
  a.chunk = mask.chunk;
  a.prefix_len = options.prefix_len.value_or(0);
  a.prefix_lens = index_of(batch.prefix_lens);
  a.tree_lens = index_of(batch.tree_lens);
  if (const Tensor& t = batch.spans; t.present()) {
    a.spans = {t.data, t.shape[1], t.stride[1], t.stride[2], t.dtype};
    a.spans_of_request = t.stride[0];
  }
  if (const Tensor& t = batch.tree_mask; t.present()) {
    a.tree_bits = {static_cast<const std::uint8_t*>(t.data), t.stride[1]};
    a.tree_bytes_of_row = t.stride[0];
    a.most_tree_keys = 8 * t.shape[1];
  }
}

/// Codes of 4 bits and the scales of their blocks, where the cache has such.
void set_blocks(GenericArgs& a, const KVCache& cache) {
  a.k_blocks = {semantics::k_strides(cache), semantics::k_block_scales(cache)};
  a.v_blocks = {semantics::v_strides(cache), semantics::v_block_scales(cache)};
  number_pages(a.cache_k, a.k_blocks);
  number_pages(a.cache_v, a.v_blocks);
}

}  // namespace

void set_list(WorkList& w, const plan_detail::DeviceList& list, std::int64_t num_kv_heads) {
  w.tile_rows = narrow(list.tile_rows);
  w.tile_keys = narrow(list.tile_keys);
  w.min_rows = narrow(list.min_rows);
  w.max_rows = narrow(list.max_rows);
  w.split_keys = narrow(list.split_keys);
  w.target_items = narrow(list.target_items);
  w.max_slices = narrow(list.max_slices);
  w.max_merges = narrow(list.max_merges);
  w.max_partials = narrow(list.max_partials);
  w.max_parts = list.max_merges > 0 ? narrow(list.max_partials / (list.max_merges * num_kv_heads)) : 1;
  w.division.given_units = static_cast<std::int16_t>(list.given_units);
}

GenericArgs batch_args(const Batch& batch, const KVCache& cache, const Options& options, Outcome* outcome) {
  GenericArgs a;
  a.num_reqs = narrow(batch.seq_lens.shape[0]);
  a.num_tokens = narrow(batch.query.shape[0]);
  a.num_q_heads = narrow(batch.query.shape[1]);
  a.num_kv_heads = narrow(num_kv_heads(cache));
  a.group = a.num_q_heads / a.num_kv_heads;
  a.head_dim = narrow(batch.query.shape[2]);
  a.page_size = narrow(page_size(cache));
  // A window that reaches past every key hides none.
  constexpr std::int64_t kWidest = std::numeric_limits<std::int32_t>::max();
  a.window = options.sliding_window.value_or(0) > kWidest ? 0 : narrow(options.sliding_window.value_or(0));
  a.num_pages = num_pages(cache);
  a.score.scale = options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(a.head_dim)));
  a.score.soft_cap = options.logits_soft_cap.value_or(0.0f);
  a.query = rows_of(batch.query);
  a.cache_k = {cache.k.data, cache.k.dtype, semantics::k_strides(cache)};
  a.cache_v = {cache.v.data, cache.v.dtype, semantics::v_strides(cache)};
  a.key = rows_of(batch.key);
  a.value = rows_of(batch.value);
  a.k_scale = per_head(cache.k_scale);
  a.v_scale = per_head(cache.v_scale);
  a.q_scale = per_head(batch.q_scale);
  a.alibi_slopes = per_head(options.alibi_slopes);
  a.sinks = per_head(options.sinks);
  a.query_start_loc = index_of(batch.query_start_loc);
  a.seq_lens = index_of(batch.seq_lens);
  a.cached_lens = index_of(batch.cached_lens);
  const Tensor& table = batch.block_table;
  a.block_table = {table.data, table.dtype, table.stride[0], table.stride[1], table.shape[1]};
  a.output = batch.output.data;
  a.output_dtype = batch.output.dtype;
  a.output_scale = per_head(batch.output_scale);
  a.output_strides = row_strides(batch.output);
  const LseRows lse = lse_of(batch.lse);
  a.lse = lse.data;
  a.lse_token = lse.token;
  a.lse_head = lse.head;
  a.outcome = outcome;
  a.may_be_padded = batch.padding != Padding::refused;
  a.zero_padding = batch.padding == Padding::zero;
  a.has_masks = !options.causal || batch.causal.present() || batch.q_begin.present() || options.attention_chunk ||
                options.prefix_len || batch.prefix_lens.present() || batch.spans.present() || batch.tree_mask.present();
  a.causal_by_default = options.causal;
  if (batch.causal.present()) a.causal = semantics::flag_view(batch.causal);
  a.q_begin = index_of(batch.q_begin);
  a.key_begin = index_of(batch.key_begin);
  a.window_right = options.window_right.value_or(-1);
  a.v_head_dim = narrow(v_head_dim(cache));
  set_shapes(a, batch, options);
  a.k_token_scale = semantics::token_scales(cache.k_scale);
  a.v_token_scale = semantics::token_scales(cache.v_scale);
  set_blocks(a, cache);
  return a;
}

GenericArgs attend_args(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::byte* workspace,
                        std::size_t list) {
  GenericArgs a = batch_args(batch, cache, options, &reinterpret_cast<CallState*>(workspace)->outcome);
  a.most_rows = 0;
  for (const plan_detail::DeviceList& l : plan.work().lists) a.most_rows = std::max(a.most_rows, narrow(l.max_rows));
  // A plan with bounds may lack lists and memory for longer requests: such requests are refused, even if a kernel could take
  // them.
  a.most_rows = narrow(std::min<std::int64_t>(a.most_rows, plan.bounds.max_query_len * a.group));
  if (!plan.bounds.seq_len_from_shapes) a.most_keys = narrow(std::min<std::int64_t>(plan.bounds.max_seq_len, a.most_keys));
  a.work = work_list(plan, workspace, list);
  return a;
}

AppendArgs append_args(const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping) {
  AppendArgs a;
  a.num_tokens = narrow(slot_mapping.shape[0]);
  a.num_kv_heads = narrow(num_kv_heads(cache));
  a.head_dim = narrow(head_dim(cache));
  a.page_size = narrow(page_size(cache));
  a.num_pages = num_pages(cache);
  a.key = rows_of(key);
  a.value = rows_of(value);
  a.cache_k = {cache.k.data, cache.k.dtype, semantics::k_strides(cache)};
  a.cache_v = {cache.v.data, cache.v.dtype, semantics::v_strides(cache)};
  a.k_scale = per_head(cache.k_scale);
  a.v_scale = per_head(cache.v_scale);
  a.slots = index_of(slot_mapping);
  a.v_head_dim = narrow(v_head_dim(cache));
  // Rows of fp8_ds_mla: key and value are their latent and their RoPE part (Q-R04).
  if (cache.k.dtype == DType::fp8_ds_mla) a.head_dim = narrow(key.shape[2]), a.v_head_dim = narrow(value.shape[2]);
  a.k_token_scale = semantics::token_scales(cache.k_scale);
  a.v_token_scale = semantics::token_scales(cache.v_scale);
  a.k_block_scale = semantics::k_block_scales(cache);
  a.v_block_scale = semantics::v_block_scales(cache);
  return a;
}

MergeArgs merge_args(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b, const Tensor& out,
                     const Tensor& lse, const Tensor& output_scale) {
  MergeArgs a;
  a.num_tokens = narrow(out.shape[0]);
  a.num_heads = narrow(out.shape[1]);
  a.head_dim = narrow(out.shape[2]);
  a.out_a = rows_of(out_a);
  a.out_b = rows_of(out_b);
  a.lse_a = lse_of(lse_a);
  a.lse_b = lse_of(lse_b);
  a.out = {out.data, out.dtype, row_strides(out)};
  a.output_scale = per_head(output_scale);
  a.lse = lse_of(lse);
  return a;
}

MergeManyArgs merge_many_args(const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse,
                              const Tensor& output_scale) {
  MergeManyArgs a;
  a.num_parts = narrow(outs.shape[0]);
  a.num_tokens = narrow(out.shape[0]);
  a.num_heads = narrow(out.shape[1]);
  a.head_dim = narrow(out.shape[2]);
  a.outs = {outs.data, outs.dtype, {outs.stride[0], outs.stride[2], outs.stride[1], 0, outs.stride[3], outs.shape[3]}};
  a.lses = {static_cast<float*>(lses.data), lses.stride[1], lses.stride[2]};
  a.lse_part = lses.stride[0];
  a.out = {out.data, out.dtype, row_strides(out)};
  a.output_scale = per_head(output_scale);
  a.lse = lse_of(lse);
  return a;
}

Status judge(const Outcome& outcome, const Plan& plan, const Batch& batch) {
  if (outcome.stale != 0)
    return {Code::invalid_argument,
            formatted(
                "attend: {} of {} prepared layers found other lengths than prepare() did, so their rows are wrong; prepare again "
                "whenever query_start_loc, seq_lens or cached_lens change",
                outcome.stale, outcome.layers)};
  if (outcome.unprepared != 0)
    return {Code::invalid_argument,
            formatted("attend: {} prepared layers wrote no row: the workspace was not prepared for this plan, these addresses of "
                      "lengths and block_table, or tensors aligned and strided as theirs; call prepare() with them first",
                      outcome.unprepared)};
  if (outcome.broken != 0)
    return {Code::internal_error,
            formatted("attend: {} refused lengths and tables that break no rule and stay within the plan", plan.kernel.name())};
  // Without padding, the shape of the query gives the number of rows; no tensor is needed.
  const auto all = static_cast<unsigned long long>(batch.query.shape[0]) * static_cast<unsigned long long>(batch.query.shape[1]);
  const unsigned long long of_layer = batch.padding == Padding::refused ? all : outcome.rows_due;
  const unsigned long long expected = of_layer * static_cast<unsigned>(outcome.layers);
  if (outcome.rows_written == expected) return {};
  return {Code::internal_error,
          formatted("attend: {} wrote {} output rows, the batch has {}", plan.kernel.name(), outcome.rows_written, expected) +
              (outcome.layers == 1 ? "" : formatted(" in {} layers", outcome.layers))};
}

}  // namespace quire::gpu
