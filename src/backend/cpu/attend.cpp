// SPDX-License-Identifier: Apache-2.0
// cpu::attend(): check, resolve pointers, run the plan's items, merge what was split, count the rows.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/entry.h"
#include "backend/cpu/fp8_tables.h"
#include "backend/cpu/parallel.h"
#include "plan/fits.h"
#include "plan/this_cpu.h"
#include "quire/attention.hpp"
#include "text/formatted.h"

namespace quire::cpu {
namespace {

const KernelEntry* find_entry(KernelHandle kernel) {
  for (const KernelEntry* entry : kernel_entries())
    if (kernel == *entry->row) return entry;
  return nullptr;
}

RowSource source_of(const Tensor& t, const semantics::KvStrides& strides, std::int64_t dims, std::int64_t stride) {
  const DType codes = t.dtype == DType::fp8_ds_mla ? DType::fp8_e4m3fn : t.dtype;
  return {t.data, t.dtype, strides, fp8_table(codes), fp8_bf16_table(t.dtype), dims, stride};
}

semantics::KvStrides row_strides(const Tensor& t) { return {0, t.stride[1], t.stride[0], 0, t.stride[2], t.shape[2]}; }

/// [tokens, heads, dim] as a RowSource.
RowSource rows_of(const Tensor& t, std::int64_t stride) {
  if (!t.present()) return {};
  return source_of(t, row_strides(t), t.shape[2], stride);
}

/// Scales of all tokens alike; absent where tokens have scales of their own.
Tensor common_scale(const Tensor& scale) { return scale.rank == 3 ? Tensor() : scale; }

BlockRows block_rows(const KVCache& cache, bool is_k) {
  const Tensor& codes = is_k ? cache.k : cache.v;
  const auto bits = [](std::int64_t count) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1))); };
  return {codes.data,
          is_k ? semantics::k_strides(cache) : semantics::v_strides(cache),
          is_k ? semantics::k_block_scales(cache) : semantics::v_block_scales(cache),
          fp8_table(block_scale_type(codes.dtype)),
          bits(num_kv_heads(cache)),
          bits(page_size(cache))};
}

/// Makes a source of 4-bit codes one of row numbers.
void number_rows(RowSource& source, const BlockRows& rows) {
  if (!rows.scales.present()) return;
  source.blocks = &rows;
  const std::int64_t page = std::int64_t{1} << (rows.head_bits + rows.token_bits), token = std::int64_t{1} << rows.head_bits;
  source.strides = {page, 1, token, 0, 1, source.dims};
}

const float* floats(const Tensor& t) { return t.present() ? static_cast<const float*>(t.data) : nullptr; }

std::int64_t scale_stride(const Tensor& scale) { return scale.rank == 1 && scale.shape[0] > 1 ? scale.stride[0] : 0; }

AttendArgs resolve(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, float* workspace) {
  AttendArgs a;
  a.reqs = plan.problem.reqs.data();
  a.group = plan.problem.group();
  a.head_dim = plan.problem.head_dim;
  a.stride = plan_detail::padded_dim(plan);
  a.v_head_dim = plan.problem.out_dim();
  a.v_stride = plan_detail::padded_v_dim(plan);
  a.tile_kv = plan.tile_kv;
  a.split_keys = plan.split_keys;
  a.interrupt = InterruptScope::current();
  a.direct_rows = plan.direct_rows;
  a.scratch = plan_detail::thread_scratch(plan);
  a.amx_scratch = plan_detail::amx_scratch(plan);
  a.query = rows_of(batch.query, a.stride);
  a.key = rows_of(batch.key, a.stride);
  a.value = rows_of(batch.value, a.v_stride);
  a.cache_k = source_of(cache.k, semantics::k_strides(cache), a.head_dim, a.stride);
  a.cache_v = source_of(cache.v, semantics::v_strides(cache), a.v_head_dim, a.v_stride);
  a.k_scale = floats(common_scale(cache.k_scale));
  a.v_scale = floats(common_scale(cache.v_scale));
  a.k_token_scale = semantics::token_scales(cache.k_scale);
  a.v_token_scale = semantics::token_scales(cache.v_scale);
  a.k_scale_stride = scale_stride(cache.k_scale);
  a.v_scale_stride = scale_stride(cache.v_scale);
  a.q_scale = floats(batch.q_scale);
  a.q_scale_stride = scale_stride(batch.q_scale);
  a.query_start_loc = semantics::index_view(batch.query_start_loc);
  a.block_table = batch.block_table;
  a.num_pages = num_pages(cache);
  a.page_size = plan.problem.page_size;
  a.window = options.sliding_window.value_or(0);
  a.window_right = options.window_right.value_or(-1);
  a.chunk = options.attention_chunk.value_or(0);
  a.spans_beyond_window = options.spans_beyond_window;
  a.spans = batch.spans;
  if (batch.tree_mask.present()) {
    a.tree_bits = {static_cast<const std::uint8_t*>(batch.tree_mask.data), batch.tree_mask.stride[1]};
    a.tree_stride = batch.tree_mask.stride[0];
  }
  a.score.scale = options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(a.head_dim)));
  a.score.soft_cap = options.logits_soft_cap.value_or(0.0f);
  a.alibi_slopes = floats(options.alibi_slopes);
  a.alibi_stride = options.alibi_slopes.stride[0];
  a.sinks = floats(options.sinks);
  a.sinks_stride = options.sinks.stride[0];
  a.output = batch.output.data;
  a.output_dtype = batch.output.dtype;
  if (batch.output_scale.present()) a.output_scale = *floats(batch.output_scale);
  a.output_strides = row_strides(batch.output);
  a.lse = batch.lse.present() ? static_cast<float*>(batch.lse.data) : nullptr;
  a.lse_token = batch.lse.stride[0];
  a.lse_head = batch.lse.stride[1];
  const plan_detail::Workspace w = plan_detail::workspace_of(plan);
  a.partial_acc = workspace + w.partial_acc;
  a.partial_states = workspace + w.partial_states;
  return a;
}

/// Whether as many spans as were planned for a request lie where they were.
bool spans_fit(const Problem& p, const Batch& batch, std::size_t request) {
  const Request& planned = p.reqs[request];
  for (std::int64_t i = 0; i < planned.num_spans; ++i)
    if (!(span_of(batch, static_cast<std::int64_t>(request), i) == p.spans[static_cast<std::size_t>(planned.first_span + i)]))
      return false;
  return true;
}

/// The plan's lengths against the batch's, without allocating when they agree.
Status lengths_fit(const Plan& plan, const Batch& batch, const Options& options) {
  const Problem& p = plan.problem;
  if (static_cast<std::int64_t>(p.reqs.size()) != batch.seq_lens.shape[0])
    return plan_detail::stale_plan(formatted("{} requests planned, batch has {}", p.reqs.size(), batch.seq_lens.shape[0]));
  for (std::size_t i = 0; i < p.reqs.size(); ++i) {
    const Request& planned = p.reqs[i];
    Request found = request_of(batch, options, static_cast<std::int64_t>(i));
    found.first_span = planned.first_span;
    if (found == planned && spans_fit(p, batch, i)) continue;
    if (found.query_len != planned.query_len || found.context_len != planned.context_len ||
        found.cached_len != planned.cached_len)
      return plan_detail::stale_plan(formatted("request {} has query_len {} context_len {} cached_len {}, planned {} {} {}", i,
                                               found.query_len, found.context_len, found.cached_len, planned.query_len,
                                               planned.context_len, planned.cached_len));
    if (found.prefix_len != planned.prefix_len || found.tree_len != planned.tree_len || found.num_spans != planned.num_spans ||
        !spans_fit(p, batch, i))
      return plan_detail::stale_plan(formatted("request {} has prefix_len {} tree_len {} and {} spans, planned {} {} {}{}", i,
                                               found.prefix_len, found.tree_len, found.num_spans, planned.prefix_len,
                                               planned.tree_len, planned.num_spans,
                                               found.num_spans == planned.num_spans ? ", or its spans lie elsewhere" : ""));
    return plan_detail::stale_plan(formatted("request {} has causal {} q_begin {} key_begin {}, planned {} {} {}", i,
                                             found.causal ? 1 : 0, found.q_begin(), found.key_begin, planned.causal ? 1 : 0,
                                             planned.q_begin(), planned.key_begin));
  }
  return {};
}

/// Everything that can be refused is refused here, before the first byte is written. `checked`: see entry.h.
Status admit(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
             const Executor& executor, bool checked) {
  if (!checked)
    if (const Findings findings = check(batch, cache, options, Depth::tables); !findings.ok()) return findings.status();
  if (Status s = plan_detail::shapes_fit(plan, batch, cache, options); !s.ok()) return s;
  if (Status s = lengths_fit(plan, batch, options); !s.ok()) return s;
  if (!checked) {
    if (Status s = runs_here(plan); !s.ok()) return s;
    if (Status s = plan_detail::workspace_fits(plan, batch, cache, options, workspace); !s.ok()) return s;
  }
  if (executor.num_threads() > plan.num_threads)
    return {Code::invalid_argument,
            formatted("attend: the executor has {} threads, the plan scratch for {}; set PlanSettings::num_threads",
                      executor.num_threads(), plan.num_threads)};
  return {};
}

/// Runs every item. Whoever completes the last part of a split merges it at once: nobody waits, and there is one parallel phase.
/// Counts the output rows written.
Status run_items(const Plan& plan, const AttendArgs& args, float* workspace, Executor& executor, std::int64_t& num_rows) {
  const KernelEntry& kernel = *find_entry(plan.kernel);
  const plan_detail::Workspace at = plan_detail::workspace_of(plan);
  auto* parts_done = reinterpret_cast<std::int32_t*>(workspace + at.parts_done);
  std::fill_n(parts_done, plan.num_merges(), 0);
  const std::int64_t scratch_stride = plan.scratch_bytes_per_thread / static_cast<std::int64_t>(sizeof(float));
  std::atomic<std::int64_t> rows_written{0};
  auto task = [&](std::int64_t index, int thread) {
    float* scratch = workspace + at.threads + thread * scratch_stride;
    const WorkItem item = plan_detail::item_of(plan, index);
    std::int64_t rows = kernel.attend(args, item, scratch);
    if (item.partial >= 0) {
      const std::int64_t m = plan_detail::merge_after(plan, index);
      const MergeItem merge = plan_detail::merge_of(plan, m);
      // Release publishes this part's partials; acquire lets the last to arrive see everybody's.
      const std::int32_t done = std::atomic_ref(parts_done[m]).fetch_add(1, std::memory_order_acq_rel) + 1;
      if (done == merge.num_partials) rows += kernel.merge(args, merge, scratch);
    }
    rows_written.fetch_add(rows, std::memory_order_relaxed);
  };
  Status status = parallel_for("attend", executor, plan.num_items(), task);
  num_rows = rows_written.load(std::memory_order_relaxed);
  return status;
}

Executor& executor_of(const AttendOptions& attend_options) {
  return attend_options.executor != nullptr ? *attend_options.executor : default_executor();
}

/// All bits 0 are the number 0 in every type that an output may have.
void zero_row(const Tensor& output, std::int64_t row, std::int64_t head) {
  const auto size = itemsize(output.dtype);
  std::byte* at = static_cast<std::byte*>(output.data) + (row * output.stride[0] + head * output.stride[1]) * size;
  if (output.stride[2] == 1) {
    std::memset(at, 0, static_cast<std::size_t>(output.shape[2] * size));
    return;
  }
  for (std::int64_t d = 0; d < output.shape[2]; ++d)
    std::memset(at + d * output.stride[2] * size, 0, static_cast<std::size_t>(size));
}

/// Output 0 and lse -inf in rows [first, num_tokens): those behind the last start, where the batch asks for zeros.
void zero_rows(const Tensor& output, const Tensor& lse, std::int64_t first) {
  for (std::int64_t row = first; row < output.shape[0]; ++row)
    for (std::int64_t head = 0; head < output.shape[1]; ++head) {
      zero_row(output, row, head);
      if (lse.present())
        static_cast<float*>(lse.data)[row * lse.stride[0] + head * lse.stride[1]] = -std::numeric_limits<float>::infinity();
    }
}

}  // namespace

Status runs_here(const Plan& plan) {
  if (find_entry(plan.kernel) == nullptr)
    return {Code::unsupported, formatted("attend: kernel {} of the plan is not in this build", plan.kernel.name())};
  if (const std::uint32_t missing = plan.device.cpu_features & ~(plan_detail::host_features() | kFastBf16Dot); missing != 0)
    return {Code::unsupported,
            formatted("attend: the plan was made for device {}, this machine is {}", plan.device.name, host_device().name)};
  return {};
}

Status prepare(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
               const AttendOptions& attend_options) {
  return admit(plan, batch, cache, options, workspace, executor_of(attend_options), /*checked=*/false);
}

Status attend(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
              const AttendOptions& attend_options, bool checked) {
  Executor& executor = executor_of(attend_options);
  if (Status s = admit(plan, batch, cache, options, workspace, executor, checked); !s.ok()) return s;

  auto* floats_of_workspace = reinterpret_cast<float*>(workspace.data());
  AttendArgs args = resolve(plan, batch, cache, options, floats_of_workspace);
  const BlockRows k_rows = block_rows(cache, /*is_k=*/true), v_rows = block_rows(cache, /*is_k=*/false);
  number_rows(args.cache_k, k_rows);
  number_rows(args.cache_v, v_rows);
  std::int64_t rows_written = 0;
  if (Status s = run_items(plan, args, floats_of_workspace, executor, rows_written); !s.ok()) return s;
  const std::int64_t expected = plan.problem.num_tokens() * plan.problem.num_q_heads;
  if (rows_written != expected)
    return {Code::internal_error,
            formatted("attend: {} wrote {} output rows, the batch has {}", plan.kernel.name(), rows_written, expected)};
  if (batch.padding == Padding::zero) zero_rows(batch.output, batch.lse, num_request_rows(batch));
  if (attend_options.rows != nullptr) *attend_options.rows = {{std::string(plan.kernel), rows_written}};
  return {};
}

}  // namespace quire::cpu
