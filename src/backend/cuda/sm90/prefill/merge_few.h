// SPDX-License-Identifier: Apache-2.0
// The end of a tile in few parts: partial results of prefill's rows to rows of the output, several rows of a warp at once.
//
// A warp that takes its rows one by one waits for memory three times a row, which is most of what a tile of 256 rows in two parts
// costs (H100, 256 decode rows over 8k shared keys: 70 of 119 us). Rows in flight together share the waits.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/tile/finish.h"

namespace quire::cuda::sm90::prefill {

inline constexpr int kFewParts = 8;

/// tile::merge_parts() of at most kFewParts parts. Lane l has the states of part l % kFewParts, and of every 128 dims 4 l to
/// 4 l + 3.
template <typename T, int kDim, typename Place>
__device__ inline void merge_few_parts(const gpu::AttendArgs& a, const tile::Item& item, int warps, Place&& place) {
  constexpr int kRows = 4, kAtOnce = 2;
  const int lane = threadIdx.x % 32, parts = item.slice.num_parts, rows = item.slice.row_end - item.slice.row_begin;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) / 32 * kRows; first < rows; first += warps * kRows) {
    // Rows and parts that do not exist are those before them once more: they weigh nothing, and are not stored.
    const auto at = [&](int part, int i) {
      return static_cast<std::int64_t>(place(min(part, parts - 1))) * a.work.tile_rows + min(first + i, rows - 1);
    };
    float4 acc[kAtOnce][kRows];
    const auto load = [&](int part, int dim) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
#pragma unroll
        for (int i = 0; i < kRows; ++i)
          acc[j][i] = __ldcg(reinterpret_cast<const float4*>(a.work.partial_acc + at(part + j, i) * kDim + min(dim, kDim - 4)));
    };
    load(0, lane * 4);
    semantics::SoftmaxState state[kRows];
    float max_of_mine[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float2 s = __ldcg(reinterpret_cast<const float2*>(a.work.partial_states) + at(lane % kFewParts, i));
      state[i] = lane % kFewParts < parts ? semantics::SoftmaxState{s.x, s.y} : semantics::SoftmaxState{};
      max_of_mine[i] = state[i].max;
    }
#pragma unroll
    for (int mask = kFewParts / 2; mask > 0; mask /= 2)
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const semantics::SoftmaxState other{__shfl_xor_sync(~0u, state[i].max, mask), __shfl_xor_sync(~0u, state[i].sum, mask)};
        state[i] = semantics::combine(state[i], other).state;
      }
    float weight_of_mine[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i)  // an empty part weighs nothing, and so does one that does not exist
      weight_of_mine[i] = semantics::weight_in(max_of_mine[i], state[i].max);
#pragma unroll 1
    for (int dim = lane * 4; dim - lane * 4 < kDim; dim += 128) {
      float4 sum[kRows] = {};
#pragma unroll 1
      for (int part = 0; part < parts; part += kAtOnce) {
        if (part > 0 || dim >= 128) load(part, dim);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            const float weight = __shfl_sync(~0u, weight_of_mine[i], part + j);
            if (weight == 0.0f) continue;  // values stored for an empty part may be anything
            sum[i].x += acc[j][i].x * weight, sum[i].y += acc[j][i].y * weight;
            sum[i].z += acc[j][i].z * weight, sum[i].w += acc[j][i].w * weight;
          }
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (first + i >= rows) continue;
        const tile::OutputRow out = tile::finish_row(a, item, item.slice.row_begin + first + i, state[i], lane == 0 && dim < 128);
        if (dim >= kDim) continue;
        tile::store_pair<T>(a, out, dim, sum[i].x, sum[i].y);
        tile::store_pair<T>(a, out, dim + 2, sum[i].z, sum[i].w);
      }
    }
  }
}

}  // namespace quire::cuda::sm90::prefill
