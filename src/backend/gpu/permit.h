// SPDX-License-Identifier: Apache-2.0
// Host side: the number by which a layer knows that the workspace was prepared for it. The number is a hash of all inputs of the
// preparation: the plan's lists, the addresses of lengths and tables, and the rules that were checked.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "backend/gpu/generic_args.h"

namespace quire::gpu {

/// 64 bits of FNV-1a's kind, a word at a time; kRefused stands for nothing.
inline unsigned long long permit_with(unsigned long long permit, std::uint64_t word) {
  std::uint64_t mixed = (permit ^ word) * 0x9E3779B97F4A7C15u;
  mixed ^= mixed >> 29;
  return mixed == kRefused ? 1 : mixed;
}

namespace permit_detail {

inline std::uint64_t bits(const void* address) { return std::bit_cast<std::uintptr_t>(address); }
inline std::uint64_t bits(std::int64_t value) { return static_cast<std::uint64_t>(value); }

template <typename... Values>
unsigned long long with_all(unsigned long long permit, const Values&... values) {
  ((permit = permit_with(permit, bits(values))), ...);
  return permit;
}

inline unsigned long long with_view(unsigned long long permit, const semantics::IndexView& v) {
  return with_all(permit, v.data, static_cast<std::int64_t>(v.dtype), v.stride);
}

}  // namespace permit_detail

/// `lists`: all of a call, as resolved from plan and batch.
inline unsigned long long permit_of(std::span<const GenericArgs> lists) {
  using namespace permit_detail;
  const AttendArgs& a = lists.front();
  unsigned long long permit =
      with_all(lists.size(), a.num_reqs, a.num_tokens, a.num_q_heads, a.num_kv_heads, a.head_dim, a.page_size, a.window,
               a.num_pages, a.most_rows, a.most_keys, std::int64_t{a.key.data != nullptr}, std::int64_t{a.may_be_padded},
               std::int64_t{a.causal_by_default}, a.window_right, a.causal.data, a.causal.stride, a.v_head_dim);
  permit = with_all(permit, a.chunk, a.prefix_len, std::int64_t{a.spans_beyond_window}, a.spans.data, a.spans.count,
                    a.spans.row_stride, a.spans.stride, a.spans_of_request, a.tree_bits.data, a.tree_bits.stride,
                    a.tree_bytes_of_row, a.most_tree_keys);
  for (const semantics::IndexView* view :
       {&a.query_start_loc, &a.seq_lens, &a.cached_lens, &a.q_begin, &a.key_begin, &a.prefix_lens, &a.tree_lens})
    permit = with_view(permit, *view);
  const BlockTable& t = a.block_table;
  permit = with_all(permit, t.data, static_cast<std::int64_t>(t.dtype), t.row_stride, t.column_stride, t.columns);
  for (const AttendArgs& list : lists) {
    const WorkList& w = list.work;
    permit = with_all(permit, static_cast<const void*>(w.slices), w.tile_rows, w.tile_keys, w.min_rows, w.max_rows, w.split_keys,
                      w.target_items, w.max_slices, w.max_merges, w.max_partials);
  }
  return permit;
}

}  // namespace quire::gpu
