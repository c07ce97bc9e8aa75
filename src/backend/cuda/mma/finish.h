// The end of an item: partial results to the workspace or rows to the output, and the merge by whoever arrives last.
#pragma once

#include <cstdint>

#include "backend/cuda/mma/element.h"
#include "backend/cuda/mma/rows.h"
#include "backend/gpu/args.h"
#include "semantics/softmax_state.h"

namespace quire::cuda::mma {

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

/// Where output row `row` (score row of the request) goes, what scales its accumulator, and its lse written.
struct OutputRow {
  std::int64_t offset;
  float factor;
};
__device__ inline OutputRow finish_row(const gpu::AttendArgs& a, const Item& item, int row, const semantics::SoftmaxState& state,
                                       bool writes_lse) {
  const int head = item.kv_head * a.group + row % a.group;
  const std::int64_t token = item.lengths.first_token + row / a.group;
  semantics::Merged with_sink{state, 1.0f, 0.0f};
  if (a.sinks.data != nullptr) with_sink = semantics::combine_sink(state, a.sinks.data[head * a.sinks.stride]);
  if (writes_lse && a.lse != nullptr) a.lse[token * a.lse_token + head * a.lse_head] = semantics::log_sum_exp(with_sink.state);
  const float sum = with_sink.state.sum;
  return {a.output_strides.row(0, head, token), sum == 0.0f ? 0.0f : with_sink.weight_a / sum};
}

/// Dims dim and dim + 1 (dim even) of a row. An empty row has factor 0 and accumulators 0.
template <typename T>
__device__ inline void store_pair(const gpu::AttendArgs& a, const OutputRow& row, int dim, float x, float y) {
  const std::uint32_t pair = T::pack(x * row.factor, y * row.factor);
  auto* to = static_cast<std::uint16_t*>(a.output) + row.offset;
  if (a.output_pairs) {
    *reinterpret_cast<std::uint32_t*>(to + dim) = pair;
  } else {
    to[dim * a.output_strides.dim] = static_cast<std::uint16_t>(pair);
    to[(dim + 1) * a.output_strides.dim] = static_cast<std::uint16_t>(pair >> 16);
  }
}

__device__ inline std::int64_t partial_tile(const gpu::AttendArgs& a, const Item& item, int part) {
  return item.slice.first_partial + static_cast<std::int64_t>(part) * a.num_kv_heads + item.kv_head;
}

/// Folds the parts of the tile's rows in part order; the first `warps` warps of the block, a row per warp at a time. Lane l
/// fetches the states of parts l, l + 32, ...: one round trip to memory instead of one for each part. `place(part)`: its partial
/// tile.
template <typename T, typename Place>
__device__ inline void merge_parts(const gpu::AttendArgs& a, const Item& item, int warps, Place&& place) {
  const int lane = threadIdx.x % 32, parts = item.slice.num_parts;
  const auto state_of = [&](int part, int r) -> semantics::SoftmaxState {
    if (part >= parts) return {};
    const std::int64_t at = static_cast<std::int64_t>(place(part)) * a.work.tile_rows + r;
    const float2 s = __ldcg(reinterpret_cast<const float2*>(a.work.partial_states) + at);
    return {s.x, s.y};
  };
  for (int r = threadIdx.x / 32; r < item.slice.row_end - item.slice.row_begin; r += warps) {
    semantics::SoftmaxState state;
    for (int first = 0; first < parts; first += 32) {
      const semantics::SoftmaxState mine = state_of(first + lane, r);
      for (int i = 0; i < min(32, parts - first); ++i)
        state = semantics::combine(state, {__shfl_sync(~0u, mine.max, i), __shfl_sync(~0u, mine.sum, i)}).state;
    }
    const OutputRow out = finish_row(a, item, item.slice.row_begin + r, state, lane == 0);
    for (int dim = lane * 2; dim < a.head_dim; dim += 64) {
      float x = 0.0f, y = 0.0f;
      for (int first = 0; first < parts; first += 32) {
        const float max = state_of(first + lane, r).max;
        const float weight_of_mine = max == -INFINITY ? 0.0f : expf(max - state.max);
#pragma unroll 8
        for (int i = 0; i < min(32, parts - first); ++i) {
          const std::int64_t row = static_cast<std::int64_t>(place(first + i)) * a.work.tile_rows + r;
          const float weight = __shfl_sync(~0u, weight_of_mine, i);  // an empty part has weight 0 and accumulators 0
          const float2 acc = __ldcg(reinterpret_cast<const float2*>(a.work.partial_acc + row * a.head_dim + dim));
          x += acc.x * weight, y += acc.y * weight;
        }
      }
      store_pair<T>(a, out, dim, x, y);
    }
  }
}

/// True in every thread of the block that completes the last part of its tile and head; the others' partials are visible then.
__device__ inline bool is_last_part(const gpu::AttendArgs& a, const Item& item) {
  __shared__ int done;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) done = atomicAdd(a.work.parts_done + item.slice.merge * a.num_kv_heads + item.kv_head, 1) + 1;
  __syncthreads();
  const bool last = done == item.slice.num_parts;
  __threadfence();
  return last;
}

__device__ inline void count_rows(const gpu::AttendArgs& a, const Item& item) {
  if (threadIdx.x == 0)
    atomicAdd(&a.outcome->rows_written, static_cast<unsigned long long>(item.slice.row_end - item.slice.row_begin));
}

/// Calls run(item) for items of the list, all threads of the block together, until none is left. The next item is drawn and
/// looked up by one thread while the block works on the one at hand.
template <typename Run>
__device__ inline void for_each_item(const gpu::AttendArgs& a, Item (&items)[2], Run&& run) {
  __shared__ bool more[2];
  const int num_items = a.outcome->broken != 0 ? 0 : *a.work.num_slices * a.num_kv_heads;
  const auto draw = [&](int slot) {
    const int index = atomicAdd(a.work.next_item, 1);
    more[slot] = index < num_items;
    if (more[slot]) items[slot] = item_at(a, index);
  };
  if (threadIdx.x == 0) draw(0);
  __syncthreads();
  for (int slot = 0; more[slot]; slot ^= 1) {
    if (threadIdx.x == blockDim.x - 32) draw(slot ^ 1);
    run(items[slot]);
    __syncthreads();
  }
}

}  // namespace quire::cuda::mma
