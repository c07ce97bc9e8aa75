// SPDX-License-Identifier: Apache-2.0
// Stage: attend, epilogue of an item. Rows of one part are finished at once. Parts of a split tile are kept until the last part
// is done; the block that finishes it folds all parts in key order, so that the result does not depend on timing.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/draw.h"
#include "backend/gpu/generic_block.h"
#include "backend/gpu/generic_products.h"
#include "semantics/dtype.h"
#include "semantics/softmax_state.h"

namespace quire::gpu {

using semantics::SoftmaxState;

/// Calls visit(row of the item, row of the thread, dim, element) for the elements of a thread among dims [first_dim, v_head_dim).
template <class Visit>
QUIRE_DEVICE void for_each_sum(const AttendArgs& a, const GenericItem& item, Accumulator& acc, int first_dim, Visit&& visit) {
  QUIRE_UNROLL
  for (int b = 0; b < Accumulator::kBlocks; ++b) QUIRE_UNROLL
  for (int r = 0; r < Accumulator::kRows; ++r) {
    const int m = Accumulator::first_row() + r, d = first_dim + b * kDimBlock + Accumulator::dim();
    if (m >= item.num_rows) continue;
    Float4& sum = acc.sum[b][r];
    if (d < a.v_head_dim) visit(m, r, d, sum.x);
    if (d + 1 < a.v_head_dim) visit(m, r, d + 1, sum.y);
    if (d + 2 < a.v_head_dim) visit(m, r, d + 2, sum.z);
    if (d + 3 < a.v_head_dim) visit(m, r, d + 3, sum.w);
  }
}

/// Element `at` of the output; 8-bit numbers are value / output_scale, rounded to nearest even, saturated.
QUIRE_DEVICE void store_output(const AttendArgs& a, std::int64_t at, float value) {
  if (a.output_dtype == DType::f32) {
    static_cast<float*>(a.output)[at] = value;
  } else if (a.output_dtype == DType::fp8_e4m3fn) {
    static_cast<std::uint8_t*>(a.output)[at] = semantics::fp8_encode<semantics::E4m3fn>(value / a.output_scale.at(0, 1.0f));
  } else {
    static_cast<std::uint16_t*>(a.output)[at] = a.output_dtype == DType::f16 ? f16_encode(value) : semantics::bf16_encode(value);
  }
}

/// Adds the sink, normalises and writes dims [first_dim, first_dim + kOutDims) of the thread's rows; lse with the first of them.
QUIRE_DEVICE void finish_rows(const AttendArgs& a, const GenericItem& item, const GenericBlock& block, Accumulator& acc,
                              const SoftmaxState (&states)[Accumulator::kRows], int first_dim) {
  float weight[Accumulator::kRows];
  std::int64_t at[Accumulator::kRows];
  QUIRE_UNROLL
  for (int r = 0; r < Accumulator::kRows; ++r) {
    const int m = Accumulator::first_row() + r;
    if (m >= item.num_rows) continue;
    const ScoreRow& row = block.rows[m];
    const semantics::Merged with_sink = semantics::combine_sink(states[r], a.sinks.at(row.head, -INFINITY));
    // No visible key and no sink: the sum is 0, the accumulator is 0 and the row is 0.
    weight[r] = with_sink.state.max == -INFINITY ? 1.0f : with_sink.weight_a / with_sink.state.sum;
    at[r] = a.output_strides.row(0, row.head, row.token);
    if (a.lse != nullptr && first_dim == 0 && Accumulator::dim() == 0)
      a.lse[row.token * a.lse_token + row.head * a.lse_head] = semantics::log_sum_exp(with_sink.state);
  }
  for_each_sum(a, item, acc, first_dim, [&](int, int r, int d, float& element) {
    // Adding 0 makes every zero +0, whatever its history. for_each_sum() visits no row from num_rows on.
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
    store_output(a, at[r] + d * a.output_strides.dim, element * weight[r] + 0.0f);
  });
}

/// Place of a part's sums and states in the workspace.
struct Partial {
  float* acc;
  float* states;
  QUIRE_DEVICE Partial(const AttendArgs& a, const GenericItem& item, std::int32_t part) {
    const std::int64_t tile = item.slice.first_partial + static_cast<std::int64_t>(part) * a.num_kv_heads + item.kv_head;
    acc = a.work.partial_acc + tile * a.work.tile_rows * a.v_head_dim;
    states = a.work.partial_states + tile * a.work.tile_rows * 2;
  }
};

QUIRE_DEVICE void keep_partial(const AttendArgs& a, const GenericItem& item, Accumulator& acc,
                               const SoftmaxState (&states)[Accumulator::kRows], int first_dim) {
  const Partial to(a, item, item.slice.part);
  for_each_sum(a, item, acc, first_dim, [&](int m, int, int d, float& element) {
    store_for_others(&to.acc[static_cast<std::int64_t>(m) * a.v_head_dim + d], element);
  });
  if (Accumulator::dim() != 0 || first_dim != 0) return;
  QUIRE_UNROLL
  for (int r = 0; r < Accumulator::kRows; ++r) {
    const int m = Accumulator::first_row() + r;
    if (m >= item.num_rows) continue;
    store_for_others(&to.states[2 * m], states[r].max);
    store_for_others(&to.states[2 * m + 1], states[r].sum);
  }
}

/// Folds all parts into `acc` and `states`, in key order.
QUIRE_DEVICE void fold_parts(const AttendArgs& a, const GenericItem& item, Accumulator& acc,
                             SoftmaxState (&states)[Accumulator::kRows], int first_dim) {
  acc.clear();
  QUIRE_UNROLL
  for (int r = 0; r < Accumulator::kRows; ++r) states[r] = {};
  QUIRE_NO_UNROLL
  for (std::int32_t part = 0; part < item.slice.num_parts; ++part) {
    const Partial from(a, item, part);
    float weight_a[Accumulator::kRows] = {}, weight_b[Accumulator::kRows] = {};
    QUIRE_UNROLL
    for (int r = 0; r < Accumulator::kRows; ++r) {
      const int m = Accumulator::first_row() + r;
      if (m >= item.num_rows) continue;
      const semantics::Merged merged = semantics::combine(states[r], {from.states[2 * m], from.states[2 * m + 1]});
      weight_a[r] = merged.weight_a;
      weight_b[r] = merged.weight_b;
      states[r] = merged.state;
    }
    for_each_sum(a, item, acc, first_dim, [&](int m, int r, int d, float& element) {
      element = fma(from.acc[static_cast<std::int64_t>(m) * a.v_head_dim + d], weight_b[r], element * weight_a[r]);
    });
  }
}

/// Whether this block finished the tile's last part, in all threads; every part can then be read. `is_last`: shared memory.
QUIRE_DEVICE bool is_last_part(const AttendArgs& a, const GenericItem& item, std::int32_t* is_last) {
  device_fence();   // this thread's stores are visible before the count announces the part
  block_barrier();  // the stores of all threads of the block are visible
  if (thread_index() == 0) {
    const std::int64_t counter = static_cast<std::int64_t>(item.slice.merge) * a.num_kv_heads + item.kv_head;
    *is_last = count_part(a.work.parts_done + counter, item.slice.num_parts) ? 1 : 0;
  }
  block_barrier();  // is_last is visible
  const bool last = *is_last != 0;
  device_fence();  // loads of other parts stay behind this fence
  return last;
}

}  // namespace quire::gpu
