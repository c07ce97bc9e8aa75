// SPDX-License-Identifier: Apache-2.0
// Stage: attend. From accumulators to output rows, lse and split-KV partials, and from partials to output rows.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cpu/attend_args.h"
#include "backend/cpu/fold_rows.h"
#include "backend/cpu/item_view.h"
#include "semantics/dtype.h"
#include "semantics/softmax_state.h"

namespace quire::cpu {
namespace {

/// A row of 8-bit numbers: stored = value / output_scale, rounded to nearest even, saturated.
inline void store_fp8_row(const AttendArgs& args, std::int64_t offset, const float* row) {
  auto* codes = static_cast<std::uint8_t*>(args.output);
  for (std::int64_t d = 0; d < args.v_head_dim; ++d) {
    codes[offset + args.output_strides.element(d)] = semantics::fp8_encode<semantics::E4m3fn>(row[d] / args.output_scale);
  }
}

template <class V>
void store_row(const AttendArgs& args, std::int64_t token, std::int64_t head, const float* row) {
  const std::int64_t dims = args.v_head_dim;
  const semantics::KvStrides& s = args.output_strides;
  const std::int64_t offset = s.row(0, head, token);
  if (args.output_dtype == DType::fp8_e4m3fn) return store_fp8_row(args, offset, row);
  auto* words = static_cast<std::uint16_t*>(args.output) + offset;
  std::int64_t d = 0;
  if (s.dim == 1) {
    for (; d + V::kWidth <= dims; d += V::kWidth) {
      const auto x = V::load(row + d);
      if (args.output_dtype == DType::f32)
        V::store(static_cast<float*>(args.output) + offset + d, x);
      else if (args.output_dtype == DType::f16)
        V::store_f16(words + d, x);
      else
        V::store_bf16(words + d, x);
    }
  }
  for (; d < dims; ++d) semantics::store(args.output, args.output_dtype, offset + s.element(d), row[d]);
}

/// Adds the sink, normalises `total` in place and writes the row and its lse.
template <class V>
void finish_row(const AttendArgs& args, std::int64_t token, std::int64_t head, float* total, SoftmaxState state) {
  const std::int64_t stride = args.v_stride;
  float weight = 1.0f;
  if (args.sinks != nullptr) {
    const semantics::Merged merged = semantics::combine_sink(state, args.sinks[head * args.sinks_stride]);
    state = merged.state;
    weight = merged.weight_a;
  }
  // Adding 0 makes every zero +0: the sign of one may depend on how many unseen keys a row multiplied by 0.
  // No visible key and no sink: the sum is 0, the accumulator is 0 and the row is 0.
  const float sum = state.max == -INFINITY ? 1.0f : state.sum;
  for (std::int64_t d = 0; d < stride; d += V::kWidth)
    V::store(total + d, V::add(V::div(V::mul(V::load(total + d), V::set1(weight)), V::set1(sum)), V::set1(0.0f)));
  store_row<V>(args, token, head, total);
  if (args.lse != nullptr) args.lse[token * args.lse_token + head * args.lse_head] = semantics::log_sum_exp(state);
}

/// Split-KV: the item is one segment; its un-normalised accumulators and states go to the workspace.
template <class V>
void store_partials(const ItemView& v) {
  for (std::int64_t m = 0; m < v.num_rows; ++m) {
    const std::int64_t index = v.item.partial + m;
    float* out = v.args.partial_acc + index * v.v_stride;
    for (std::int64_t d = 0; d < v.v_stride; d += V::kWidth) V::store(out + d, V::load(v.acc + m * v.v_stride + d));
    v.args.partial_states[2 * index] = v.states[m].max;
    v.args.partial_states[2 * index + 1] = v.states[m].sum;
  }
}

/// KernelEntry::merge.
template <class V>
std::int64_t merge_item(const AttendArgs& args, const MergeItem& item, float* scratch) {
  const std::int64_t group = args.group;
  const std::int64_t stride = args.v_stride;
  const std::int64_t num_rows = (item.row_end - item.row_begin) * group;
  for (std::int64_t m = 0; m < num_rows; ++m) {
    SoftmaxState state;
    for (std::int64_t d = 0; d < stride; ++d) scratch[d] = 0.0f;
    for (std::int64_t part = 0; part < item.num_partials; ++part) {
      const std::int64_t index = item.first_partial + part * num_rows + m;
      const SoftmaxState part_state{args.partial_states[2 * index], args.partial_states[2 * index + 1]};
      fold_row<V>(scratch, state, args.partial_acc + index * stride, part_state, stride);
    }
    const std::int64_t token = args.query_start_loc[item.req] + item.row_begin + m / group;
    finish_row<V>(args, token, item.kv_head * group + m % group, scratch, state);
  }
  return num_rows;
}

}  // namespace
}  // namespace quire::cpu
