// SPDX-License-Identifier: Apache-2.0
// Rows that come in several parts: the launch behind attend_mla. One request of 8k keys has 32 parts of 128 rows, too much to be
// read by the two blocks that complete the last part of each tile.
#pragma once

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/mla/memory.h"

namespace quire::cuda::sm90::mla {

constexpr int kMergeThreads = 128, kDimsOfWarp = 128, kWarpsOfRow = kValueDim / kDimsOfWarp;

/// Parts of one score row, dims 4 lane to 4 lane + 3 of a warp's 128.
template <typename T>
struct MergedRow {
  static constexpr int kAtOnce = 8;  ///< loads under way

  const gpu::AttendArgs& a;
  const tile::Item& item;
  const int row;
  const int dim;

  __device__ std::int64_t place(int part) const { return tile::partial_tile(a, item, part) * a.work.tile_rows + row; }
  __device__ semantics::SoftmaxState state_of(int part) const {
    if (part >= item.slice.num_parts) return {};
    const float2 state = __ldcg(reinterpret_cast<const float2*>(a.work.partial_states) + place(part));
    return {state.x, state.y};
  }
  __device__ semantics::SoftmaxState state() const {
    semantics::SoftmaxState all = state_of(threadIdx.x % 32);
#pragma unroll 1
    for (int part = threadIdx.x % 32 + 32; part < item.slice.num_parts; part += 32)
      all = semantics::combine(all, state_of(part)).state;
#pragma unroll 1
    for (int mask = 16; mask > 0; mask /= 2)
      all = semantics::combine(all, {__shfl_xor_sync(~0u, all.max, mask), __shfl_xor_sync(~0u, all.sum, mask)}).state;
    return {__shfl_sync(~0u, all.max, 0), __shfl_sync(~0u, all.sum, 0)};
  }
  /// Parts [first, first + kAtOnce); part 0 in the place of those that do not exist.
  __device__ void load(float4 (&acc)[kAtOnce], int first) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t at = place(first + i < item.slice.num_parts ? first + i : 0);
      acc[i] = __ldcg(reinterpret_cast<const float4*>(a.work.partial_acc + at * kValueDim + dim));
    }
  }

  /// In the order of parts, so that equal calls give equal bits.
  __device__ void store(bool writes_lse) const {
    float4 acc[kAtOnce], sum{};
    load(acc, 0);
    const semantics::SoftmaxState all = state();
    float weight_of_mine = 0.0f;
#pragma unroll 1
    for (int first = 0; first < item.slice.num_parts; first += kAtOnce) {
      if (first > 0) load(acc, first);
      if (first % 32 == 0)  // an empty part weighs nothing, and so does a part that does not exist
        weight_of_mine = semantics::weight_in(state_of(first + static_cast<int>(threadIdx.x) % 32).max, all.max);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = __shfl_sync(~0u, weight_of_mine, first % 32 + i);
        if (weight == 0.0f) continue;  // values loaded for a part that does not exist may be anything
        sum.x += acc[i].x * weight, sum.y += acc[i].y * weight, sum.z += acc[i].z * weight, sum.w += acc[i].w * weight;
      }
    }
    const tile::OutputRow to = tile::finish_row<tile::Output::own>(a, item, item.slice.row_begin + row, all, writes_lse);
    tile::store_pair<T, tile::Output::own>(a, to, dim, sum.x, sum.y);
    tile::store_pair<T, tile::Output::own>(a, to, dim + 2, sum.z, sum.w);
  }
};

/// A warp has 128 dims of every num_warps-th row of a split tile; `warp` is its number among them, and becomes that in the next
/// tile. Returns how many rows it has counted.
template <typename T>
__device__ inline int merge_tile(const gpu::AttendArgs& a, const gpu::WorkSlice& slice, int& warp, int num_warps) {
  const tile::Item item{slice, gpu::lengths_of(a, slice.req), 0};
  const int lane = static_cast<int>(threadIdx.x) % 32, pieces = (slice.row_end - slice.row_begin) * kWarpsOfRow;
  int counted = 0;
  for (; warp < pieces; warp += num_warps) {
    const int part_of_row = warp % kWarpsOfRow;
    const bool first = part_of_row == 0;
    MergedRow<T>{a, item, warp / kWarpsOfRow, part_of_row * kDimsOfWarp + lane * 4}.store(first && lane == 0);
    counted += first ? 1 : 0;
  }
  warp -= pieces;
  return counted;
}

template <typename T>
__global__ void __launch_bounds__(kMergeThreads) merge_mla(const __grid_constant__ gpu::AttendArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wait_for_dependencies();
  if (gpu::is_refused(a)) return;
  constexpr int kWarps = kMergeThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, num_slices = *a.work.num_slices;
  int warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32, counted = 0;
  for (int first = 0; first < num_slices; first += 32) {
    bool is_split = false;
    if (first + lane < num_slices) {
      const gpu::WorkSlice& slice = a.work.slices[first + lane];
      is_split = slice.num_parts > 1 && slice.part == 0;
    }
    for (unsigned split = __ballot_sync(~0u, is_split); split != 0; split &= split - 1)
      counted +=
          merge_tile<T>(a, a.work.slices[first + __ffs(static_cast<int>(split)) - 1], warp, static_cast<int>(gridDim.x) * kWarps);
  }
  if (lane == 0 && counted > 0) atomicAdd(&a.outcome->rows_written, static_cast<unsigned long long>(counted));
#endif
}

}  // namespace quire::cuda::sm90::mla
