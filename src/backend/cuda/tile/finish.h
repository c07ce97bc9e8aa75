// SPDX-License-Identifier: Apache-2.0
// Epilogue of an item: partial results to the workspace or rows to the output, and the merge by the last block to arrive.
#pragma once

#include <cstdint>

#include "backend/cuda/tile/element.h"
#include "backend/cuda/tile/output_pair.h"
#include "backend/cuda/tile/rows.h"
#include "backend/gpu/args.h"
#include "backend/gpu/draw.h"
#include "semantics/softmax_state.h"

namespace quire::cuda::tile {

/// The item at hand.
struct Item {
  gpu::WorkSlice slice;
  gpu::Lengths lengths;
  int kv_head;
};

/// The slice begins at a whole tile of keys; the item at the first key that one of its rows sees, as nothing before it may be
/// read.
__device__ inline Item item_at(const gpu::AttendArgs& a, int index) {
  Item item;
  item.slice = a.work.slices[index / a.num_kv_heads];
  item.kv_head = index % a.num_kv_heads;
  item.lengths = gpu::lengths_of(a, item.slice.req);
  const semantics::KeyRange seen = keys_of_row(a, item.lengths, item.slice.row_begin);
  item.slice.key_begin = max(item.slice.key_begin, static_cast<int>(seen.begin));
  return item;
}

/// A state in natural units from a base-2 maximum, to which weights are 2^kWeightShift too large. A NaN sum marks a NaN score,
/// which a maximum passes over.
template <typename T>
__device__ inline semantics::SoftmaxState natural_state(float max2, float sum) {
  return {sum != sum ? sum : (max2 - T::kWeightShift) * kLn2, sum};
}

/// Writes the lse of output row `row` (score row of the request); returns the row's place and the factor of its accumulator.
struct OutputRow {
  std::int64_t offset;
  float factor;
};

/// A row's factor in units of an 8-bit output. The result stays finite, so that zeros stay zeros; NaN stays NaN.
__device__ inline float in_output_units(const gpu::AttendArgs& a, float factor) {
  if (a.output_scale.data == nullptr) return factor;
  constexpr float kMost = 0x1.FFFFFEp127f;
  const float scaled = factor / *a.output_scale.data;
  return scaled > kMost ? kMost : scaled;
}

template <Output kOutput = Output::any>
__device__ inline OutputRow finish_row(const gpu::AttendArgs& a, const Item& item, int query_row, int head_of_group,
                                       const semantics::SoftmaxState& state, bool writes_lse) {
  const int head = item.kv_head * a.group + head_of_group;
  const std::int64_t token = item.lengths.first_token + query_row;
  semantics::Merged with_sink{state, 1.0f, 0.0f};
  if (a.sinks.data != nullptr) with_sink = semantics::combine_sink(state, a.sinks.data[head * a.sinks.stride]);
  if (writes_lse && a.lse != nullptr) a.lse[token * a.lse_token + head * a.lse_head] = semantics::log_sum_exp(with_sink.state);
  const float sum = with_sink.state.sum;
  const float factor = sum == 0.0f ? 0.0f : with_sink.weight_a / sum;
  return {a.output_strides.row(0, head, token), kOutput == Output::any ? in_output_units(a, factor) : factor};
}

template <Output kOutput = Output::any>
__device__ inline OutputRow finish_row(const gpu::AttendArgs& a, const Item& item, int row, const semantics::SoftmaxState& state,
                                       bool writes_lse) {
  return finish_row<kOutput>(a, item, row / a.group, row % a.group, state, writes_lse);
}

/// Dims dim and dim + 1 (dim even) of a row. An empty row has factor 0 and accumulators 0.
template <typename T, Output kOutput = Output::any>
__device__ inline void store_pair(const gpu::AttendArgs& a, const OutputRow& row, int dim, float x, float y) {
  const std::int64_t at = row.offset + (a.output_pairs ? dim : dim * a.output_strides.dim);
  store_pair<T, kOutput>(a, at, a.output_strides.dim, a.output_pairs, x * row.factor, y * row.factor);
}

__device__ inline std::int64_t partial_tile(const gpu::AttendArgs& a, const Item& item, int part) {
  return item.slice.first_partial + static_cast<std::int64_t>(part) * a.num_kv_heads + item.kv_head;
}

/// Folds the parts of the tile's rows; the first `warps` warps of the block, a row per warp at a time. `place(part)`: its partial
/// tile. Lane l has the states of parts l, l + 32, ..., and of every 128 dims 4 l to 4 l + 3. Few round trips to memory matter
/// more than anything else here: the first accumulators are asked for before the states are known.
template <typename T, typename Place>
__device__ inline void merge_parts(const gpu::AttendArgs& a, const Item& item, int warps, Place&& place) {
  constexpr int kAtOnce = 8;
  const int lane = threadIdx.x % 32, parts = item.slice.num_parts;
  for (int r = threadIdx.x / 32; r < item.slice.row_end - item.slice.row_begin; r += warps) {
    const auto at = [&](int part) { return static_cast<std::int64_t>(place(part)) * a.work.tile_rows + r; };
    const auto state_of = [&](int part) -> semantics::SoftmaxState {
      if (part >= parts) return {};
      const float2 s = __ldcg(reinterpret_cast<const float2*>(a.work.partial_states) + at(part));
      return {s.x, s.y};
    };
    const auto load = [&](float4(&acc)[kAtOnce], int first, int dim) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool exists = first + i < parts && dim < a.v_head_dim;
        const float* from = a.work.partial_acc + at(exists ? first + i : 0) * a.v_head_dim + (exists ? dim : 0);
        acc[i] = __ldcg(reinterpret_cast<const float4*>(from));
      }
    };
    float4 acc[kAtOnce];
    load(acc, 0, lane * 4);
    semantics::SoftmaxState state = state_of(lane);
#pragma unroll 1
    for (int part = lane + 32; part < parts; part += 32) state = semantics::combine(state, state_of(part)).state;
#pragma unroll 1
    for (int mask = 16; mask > 0; mask /= 2)
      state = semantics::combine(state, {__shfl_xor_sync(~0u, state.max, mask), __shfl_xor_sync(~0u, state.sum, mask)}).state;
    state = {__shfl_sync(~0u, state.max, 0), __shfl_sync(~0u, state.sum, 0)};
    const OutputRow out = finish_row(a, item, item.slice.row_begin + r, state, lane == 0);
#pragma unroll 1
    for (int dim = lane * 4; dim - lane * 4 < a.v_head_dim; dim += 128) {
      float4 sum{};
      float weight_of_mine = 0.0f;
#pragma unroll 1
      for (int first = 0; first < parts; first += kAtOnce) {
        if (first > 0 || dim >= 128) load(acc, first, dim);
        if (first % 32 == 0)  // an empty part weighs nothing, and so does a part that does not exist
          weight_of_mine = semantics::weight_in(state_of(first + lane).max, state.max);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float weight = __shfl_sync(~0u, weight_of_mine, first % 32 + i);
          if (weight == 0.0f) continue;  // loads of a part that does not exist may give any value
          sum.x += acc[i].x * weight, sum.y += acc[i].y * weight, sum.z += acc[i].z * weight, sum.w += acc[i].w * weight;
        }
      }
      if (dim >= a.v_head_dim) continue;
      store_pair<T>(a, out, dim, sum.x, sum.y);
      store_pair<T>(a, out, dim + 2, sum.z, sum.w);
    }
  }
}

/// Whether this block completes the last part of its tile and head, in every thread; the other parts' partials are then visible.
__device__ inline bool is_last_part(const gpu::AttendArgs& a, const Item& item) {
  __shared__ bool done;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    done = gpu::count_part(a.work.parts_done + item.slice.merge * a.num_kv_heads + item.kv_head, item.slice.num_parts);
  __syncthreads();
  const bool last = done;
  __threadfence();
  return last;
}

__device__ inline void count_rows(const gpu::AttendArgs& a, const Item& item) {
  if (threadIdx.x == 0)
    atomicAdd(&a.outcome->rows_written, static_cast<unsigned long long>(item.slice.row_end - item.slice.row_begin));
}

}  // namespace quire::cuda::tile
