// SPDX-License-Identifier: Apache-2.0
// merge() and merge_many(): finished partial results over disjoint key sets become one. An empty part (lse = -inf) is not read.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/launch_sizes.h"
#include "semantics/dtype.h"
#include "semantics/softmax_state.h"

namespace quire::gpu {

/// Any number of blocks of kMergeThreads threads.
QUIRE_DEVICE void merge(const MergeArgs& a) {
  constexpr int rows_at_once = kMergeThreads / kMergeLanes;
  const std::int64_t num_rows = static_cast<std::int64_t>(a.num_tokens) * a.num_heads;
  const int lane = thread_index() % kMergeLanes;
  const std::int64_t step = static_cast<std::int64_t>(num_blocks()) * rows_at_once;
  for (std::int64_t first = static_cast<std::int64_t>(block_index()) * rows_at_once; first < num_rows; first += step) {
    const std::int64_t row = first + thread_index() / kMergeLanes;
    const bool mine = row < num_rows;
    const std::int64_t token = mine ? row / a.num_heads : 0, head = mine ? row % a.num_heads : 0;
    const semantics::Merged m = semantics::combine(semantics::from_lse(a.lse_a.at(token, head)),  //
                                                   semantics::from_lse(a.lse_b.at(token, head)));
    block_barrier();  // lse may be lse_a or lse_b: all lanes of a row have read before one writes
    if (!mine) continue;
    // Normalised sides: each weighs weight * its sum of 1, over the union's sum.
    const bool empty = m.state.max == -INFINITY;
    const float weight_a = empty ? 0.0f : m.weight_a / m.state.sum;
    const float weight_b = empty ? 0.0f : m.weight_b / m.state.sum;
    for (std::int32_t d = lane; d < a.head_dim; d += kMergeLanes) {
      const float from_a = weight_a == 0.0f ? 0.0f : weight_a * a.out_a.load(token, head, d);
      const float from_b = weight_b == 0.0f ? 0.0f : weight_b * a.out_b.load(token, head, d);
      semantics::store(a.out.data, a.out.dtype, a.out.strides.row(0, head, token) + element_of(a.out.strides, d),
                       (from_a + from_b) / a.output_scale.at(0, 1.0f));
    }
    if (lane == 0 && a.lse.data != nullptr) a.lse.data[token * a.lse.token + head * a.lse.head] = semantics::log_sum_exp(m.state);
  }
}

QUIRE_DEVICE float load_part(const MergeManyArgs& a, int part, std::int64_t token, std::int64_t head, std::int32_t d) {
  return semantics::load(a.outs.data, a.outs.dtype, a.outs.strides.row(part, head, token) + element_of(a.outs.strides, d));
}

/// Any number of blocks of kMergeThreads threads.
QUIRE_DEVICE void merge_many(const MergeManyArgs& a) {
  constexpr int rows_at_once = kMergeThreads / kMergeLanes;
  constexpr int kDimsAtOnce = 4;  // loads of four dims of a lane wait for memory together
  const std::int64_t num_rows = static_cast<std::int64_t>(a.num_tokens) * a.num_heads;
  const int lane = thread_index() % kMergeLanes;
  const std::int64_t step = static_cast<std::int64_t>(num_blocks()) * rows_at_once;
  for (std::int64_t row = static_cast<std::int64_t>(block_index()) * rows_at_once + thread_index() / kMergeLanes; row < num_rows;
       row += step) {
    const std::int64_t token = row / a.num_heads, head = row % a.num_heads;
    const auto lse_of = [&](int part) { return a.lses.data[part * a.lse_part + token * a.lses.token + head * a.lses.head]; };
    const semantics::SoftmaxState all = semantics::union_of(a.num_parts, lse_of);
    for (std::int32_t first = lane; first < a.head_dim; first += kMergeLanes * kDimsAtOnce) {
      float sums[kDimsAtOnce] = {};
      for (int part = 0; part < a.num_parts; ++part) {
        const float weight = semantics::union_weight(all, lse_of(part));
        QUIRE_UNROLL
        for (int i = 0; i < kDimsAtOnce; ++i) {
          const std::int32_t d = first + i * kMergeLanes;
          const float value = weight == 0.0f || d >= a.head_dim ? 0.0f : weight * load_part(a, part, token, head, d);
          sums[i] = part == 0 ? value : sums[i] + value;
        }
      }
      QUIRE_UNROLL
      for (int i = 0; i < kDimsAtOnce; ++i) {
        const std::int32_t d = first + i * kMergeLanes;
        if (d < a.head_dim)
          semantics::store(a.out.data, a.out.dtype, a.out.strides.row(0, head, token) + element_of(a.out.strides, d),
                           sums[i] / a.output_scale.at(0, 1.0f));
      }
    }
    if (lane == 0 && a.lse.data != nullptr) a.lse.data[token * a.lse.token + head * a.lse.head] = semantics::log_sum_exp(all);
  }
}

}  // namespace quire::gpu
