// SPDX-License-Identifier: Apache-2.0
// See device.h. The portable kernels are compiled for the stand-in here, once for all tests.
#include "simt/device.h"

#include <cmath>
#include <cstring>

#include "backend/gpu/attend_generic.h"
#include "backend/gpu/fill_rows.h"
#include "backend/gpu/schedule.h"
#include "backend/gpu/validate.h"

namespace quire::simt {

namespace {

/// Chunks, prefixes, spans and trees, as the host side of a device resolves them.
void set_shapes(gpu::AttendArgs& a, const Case& c) {
  const Batch& b = c.batch;
  a.spans_beyond_window = c.options.spans_beyond_window;
  semantics::Mask mask;
  mask.set_chunk(c.options.attention_chunk.value_or(0));
  a.chunk = mask.chunk;
  a.prefix_len = c.options.prefix_len.value_or(0);
  if (b.prefix_lens.present()) a.prefix_lens = semantics::index_view(b.prefix_lens);
  if (b.tree_lens.present()) a.tree_lens = semantics::index_view(b.tree_lens);
  if (b.spans.present()) {
    a.spans = {b.spans.data, b.spans.shape[1], b.spans.stride[1], b.spans.stride[2], b.spans.dtype};
    a.spans_of_request = b.spans.stride[0];
  }
  if (!b.tree_mask.present()) return;
  a.tree_bits = {static_cast<const std::uint8_t*>(b.tree_mask.data), b.tree_mask.stride[1]};
  a.tree_bytes_of_row = b.tree_mask.stride[0];
  a.most_tree_keys = 8 * b.tree_mask.shape[1];
}

}  // namespace

gpu::GenericArgs attend_args(const Case& c) {
  const Batch& b = c.batch;
  gpu::GenericArgs a;
  a.num_reqs = static_cast<std::int32_t>(b.seq_lens.shape[0]);
  a.num_tokens = static_cast<std::int32_t>(b.query.shape[0]);
  a.num_q_heads = static_cast<std::int32_t>(b.query.shape[1]);
  a.num_kv_heads = static_cast<std::int32_t>(num_kv_heads(c.cache));
  a.group = a.num_q_heads / a.num_kv_heads;
  a.head_dim = static_cast<std::int32_t>(b.query.shape[2]);
  a.page_size = static_cast<std::int32_t>(page_size(c.cache));
  a.window = static_cast<std::int32_t>(c.options.sliding_window.value_or(0));
  a.num_pages = num_pages(c.cache);
  a.score = {c.options.softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(a.head_dim))),
             c.options.logits_soft_cap.value_or(0.0f)};
  a.query = rows_of(b.query);
  a.cache_k = {c.cache.k.data, c.cache.k.dtype, semantics::k_strides(c.cache)};
  a.cache_v = {c.cache.v.data, c.cache.v.dtype, semantics::v_strides(c.cache)};
  a.key = rows_of(b.key);
  a.value = rows_of(b.value);
  a.k_scale = per_head(c.cache.k_scale);
  a.v_scale = per_head(c.cache.v_scale);
  a.k_token_scale = semantics::token_scales(c.cache.k_scale);
  a.v_token_scale = semantics::token_scales(c.cache.v_scale);
  a.q_scale = per_head(c.batch.q_scale);
  a.output_scale = per_head(c.batch.output_scale);
  a.alibi_slopes = c.options.alibi_slopes.present()
                       ? gpu::PerHead{static_cast<const float*>(c.options.alibi_slopes.data), c.options.alibi_slopes.stride[0]}
                       : gpu::PerHead{};
  a.sinks = c.options.sinks.present() ? gpu::PerHead{static_cast<const float*>(c.options.sinks.data), c.options.sinks.stride[0]}
                                      : gpu::PerHead{};
  a.query_start_loc = semantics::index_view(b.query_start_loc);
  a.seq_lens = semantics::index_view(b.seq_lens);
  if (b.cached_lens.present()) a.cached_lens = semantics::index_view(b.cached_lens);
  a.block_table = {b.block_table.data, b.block_table.dtype, b.block_table.stride[0], b.block_table.stride[1],
                   b.block_table.shape[1]};
  a.output = b.output.data;
  a.output_dtype = b.output.dtype;
  a.output_strides = row_strides(b.output);
  a.lse = static_cast<float*>(b.lse.data);
  if (b.lse.present()) a.lse_token = b.lse.stride[0], a.lse_head = b.lse.stride[1];
  a.may_be_padded = b.padding != Padding::refused;
  a.zero_padding = b.padding == Padding::zero;
  a.has_masks = !problem_of(b, c.cache, c.options).is_causal_at_end();
  a.causal_by_default = c.options.causal;
  if (b.causal.present()) a.causal = semantics::flag_view(b.causal);
  if (b.q_begin.present()) a.q_begin = semantics::index_view(b.q_begin);
  if (b.key_begin.present()) a.key_begin = semantics::index_view(b.key_begin);
  a.window_right = c.options.window_right.value_or(-1);
  a.v_head_dim = static_cast<std::int32_t>(v_head_dim(c.cache));
  set_shapes(a, c);
  a.k_blocks = {semantics::k_strides(c.cache), semantics::k_block_scales(c.cache)};
  a.v_blocks = {semantics::v_strides(c.cache), semantics::v_block_scales(c.cache)};
  gpu::number_pages(a.cache_k, a.k_blocks);
  gpu::number_pages(a.cache_v, a.v_blocks);
  return a;
}

WorkMemory::WorkMemory(const gpu::AttendArgs& a, std::int32_t max_slices, std::int32_t split_keys, std::int32_t target_items,
                       const ListShape& shape)
    : slices(static_cast<std::size_t>(max_slices)),
      numbers(3, -1),
      parts_done(static_cast<std::size_t>(max_slices * a.num_kv_heads), -1),
      states(static_cast<std::size_t>(max_slices * a.num_kv_heads * shape.tile_rows) * 2, std::nanf("")) {
  acc.assign(states.size() / 2 * static_cast<std::size_t>(a.v_head_dim), std::nanf(""));
  std::memset(static_cast<void*>(slices.data()), 0x7F, slices.size() * sizeof slices[0]);
  work.slices = slices.data();
  work.num_slices = &numbers[0];
  work.next_item = &numbers[1];
  work.division.units = &numbers[2];
  work.parts_done = parts_done.data();
  work.partial_acc = acc.data();
  work.partial_states = states.data();
  work.tile_rows = shape.tile_rows;
  work.tile_keys = shape.tile_keys;
  work.min_rows = shape.min_rows;
  work.max_rows = shape.max_rows;
  work.split_keys = split_keys;
  work.target_items = target_items;
  work.max_slices = work.max_merges = max_slices;
  work.max_partials = max_slices * a.num_kv_heads;
}

std::string fill_list(const Device& device, const gpu::AttendArgs& a, WorkMemory& memory) {
  if (std::string e =
          run(device.launch(2, gpu::kValidateThreads, 0), [&] { gpu::validate(a, gpu::block_index(), gpu::num_blocks()); });
      !e.empty())
    return "validate: " + e;
  if (std::string e =
          run(device.launch(1, gpu::kScheduleThreads, gpu::kScheduleSharedBytes), [&] { gpu::schedule(a, gpu::SharedArea()); });
      !e.empty())
    return "schedule: " + e;
  for (std::int32_t& count : memory.parts_done) count += device.counters_ahead;
  return {};
}

std::string fill_rows(const Device& device, const gpu::AttendArgs& a) {
  if (!a.fills_rows()) return {};
  const std::string e = run(device.launch(device.blocks, gpu::kFillThreads, 0), [&] { gpu::fill_rows(a); });
  return e.empty() ? e : "fill_rows: " + e;
}

std::string attend(const Device& device, gpu::GenericArgs a, gpu::Outcome& outcome, WorkMemory& memory) {
  outcome = {};
  a.outcome = &outcome;
  a.work = memory.work;
  if (std::string e = fill_list(device, a, memory); !e.empty()) return e;
  if (device.tamper) device.tamper(a);
  if (std::string e = run(device.launch(device.blocks, gpu::kGenericThreads, gpu::kGenericSharedBytes),
                          [&] { gpu::attend_generic(a, gpu::SharedArea()); });
      !e.empty())
    return "attend: " + e;
  return fill_rows(device, a);
}

Status run_lists(const Device& device, gpu::GenericArgs a, std::vector<WorkMemory>& lists, std::int64_t& rows,
                 const std::function<std::string(const gpu::AttendArgs&)>& kernel) {
  gpu::Outcome outcome;
  a.outcome = &outcome;
  for (WorkMemory& memory : lists) {
    a.work = memory.work;
    if (const std::string e = fill_list(device, a, memory); !e.empty()) return {Code::internal_error, e};
  }
  for (WorkMemory& memory : lists) {
    a.work = memory.work;
    if (device.tamper) device.tamper(a);
    if (const std::string e = kernel(a); !e.empty()) return {Code::internal_error, "attend: " + e};
  }
  if (const std::string e = fill_rows(device, a); !e.empty()) return {Code::internal_error, e};
  if (outcome.broken != 0) return {Code::contract_violation, "the device calls the batch broken"};
  rows = static_cast<std::int64_t>(outcome.rows_written);
  return {};
}

Status attend(const Device& device, const Case& c, std::int64_t& rows) {
  const gpu::GenericArgs a = attend_args(c);
  WorkMemory memory(a, device.max_slices, device.split_keys, device.target_items);
  gpu::Outcome outcome;
  if (const std::string e = attend(device, a, outcome, memory); !e.empty()) return {Code::internal_error, e};
  if (outcome.broken != 0) return {Code::contract_violation, "the device calls the batch broken"};
  rows = static_cast<std::int64_t>(outcome.rows_written);
  return {};
}

}  // namespace quire::simt
