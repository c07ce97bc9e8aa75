// SPDX-License-Identifier: Apache-2.0
// The end of an item of MLA decode: rows of one part to the output, parts of rows to the workspace (merge.h).
#pragma once

#include "backend/cuda/sm90/mla/exact_rows.h"
#include "backend/cuda/sm90/mla/scores.h"

namespace quire::cuda::sm90::mla {

/// T: type of the query and the output.
template <typename T, int kGroup>
struct Epilogue {
  using Softmax = Online<T>;
  using State = typename Softmax::State;

  const gpu::AttendArgs& a;
  Shared& shared;

  __device__ static void sync_consumers() { hopper::named_barrier<2, kConsumerThreads>(); }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) % 128 / 32; }

  /// Bits of the warp's 16 rows of which this warpgroup's sums are infinite or NaN.
  __device__ static std::uint32_t not_finite(const State& state) {
    std::uint32_t rows = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float zero[2] = {state.sum[h] * 0.0f, 0.0f};  // x * 0 is NaN for every such x
#pragma unroll
      for (int i = 0; i < kHalfDim / 4; ++i) zero[i % 2] = fmaf(state.out[i / 2 * 4 + 2 * h + i % 2], 0.0f, zero[i % 2]);
      const std::uint32_t lanes = __ballot_sync(~0u, zero[0] + zero[1] != 0.0f);
      if (lanes == 0) continue;
#pragma unroll
      for (int r = 0; r < 8; ++r) rows |= (lanes >> 4 * r & 15u) != 0 ? 1u << (r + 8 * h) : 0u;
    }
    return rows;
  }

  /// Adds up the sums of both warpgroups. Rows whose sums are not finite, as bits of the warp's 16.
  __device__ std::uint32_t share_sums(State& state) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 1);
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 2);
      if (threadIdx.x % 4 == 0) shared.sum[kGroup][Lane::row() + 8 * h] = state.sum[h];
    }
    const std::uint32_t rows = not_finite(state);
    if (threadIdx.x % 32 == 0) shared.not_finite[kGroup][warp()] = rows;
    sync_consumers();
#pragma unroll
    for (int h = 0; h < 2; ++h) state.sum[h] = shared.sum[0][Lane::row() + 8 * h] + shared.sum[1][Lane::row() + 8 * h];
    return shared.not_finite[0][warp()] | shared.not_finite[1][warp()];
  }

  __device__ static semantics::SoftmaxState natural_state(const State& state, int h) {
    return {(state.max[h] - Softmax::kShift) * tile::kLn2, state.sum[h]};
  }

  /// Index among the partial results of the row that is row 0 of the tile.
  __device__ std::int64_t partial_row(const tile::Item& item) const {
    return tile::partial_tile(a, item, item.slice.part) * a.work.tile_rows;
  }

  __device__ void store_partial(const State& state, const tile::Item& item, int h) const {
    const std::int64_t at = partial_row(item) + Lane::row() + 8 * h;
    const semantics::SoftmaxState natural = natural_state(state, h);
    if (kGroup == 0 && threadIdx.x % 4 == 0)
      *reinterpret_cast<float2*>(a.work.partial_states + at * 2) = make_float2(natural.max, natural.sum);
    float* const to = a.work.partial_acc + at * kValueDim + kGroup * kHalfDim + Lane::column();
#pragma unroll
    for (int i = 0; i < kHalfDim / 8; ++i)
      *reinterpret_cast<float2*>(to + i * 8) = make_float2(state.out[4 * i + 2 * h], state.out[4 * i + 2 * h + 1]);
  }

  __device__ void store_row(const State& state, const tile::Item& item, int h) const {
    const bool writes_lse = kGroup == 0 && threadIdx.x % 4 == 0;
    const tile::OutputRow to = tile::finish_row<tile::Output::own>(a, item, item.slice.row_begin + Lane::row() + 8 * h,
                                                                   natural_state(state, h), writes_lse);
#pragma unroll
    for (int i = 0; i < kHalfDim / 8; ++i)
      tile::store_pair<T, tile::Output::own>(a, to, kGroup * kHalfDim + i * 8 + Lane::column(), state.out[4 * i + 2 * h],
                                             state.out[4 * i + 2 * h + 1]);
  }

  /// Rows that are computed again, half of them by each warpgroup.
  __device__ void store_exact(const tile::Item& item, std::uint32_t rows) const {
    constexpr std::uint32_t kMine = kGroup == 0 ? 0x5555u : 0xAAAAu;
    const std::int64_t first = item.slice.num_parts > 1 ? partial_row(item) - item.slice.row_begin : 0;
#pragma unroll 1
    for (rows &= kMine; rows != 0; rows &= rows - 1) {
      const int row = item.slice.row_begin + warp() * 16 + __ffs(static_cast<int>(rows)) - 1;
      if (row < item.slice.row_end) store_exact_row<T>(a, item, row, first + row);
    }
  }

  __device__ void close(State& state, const tile::Item& item) const {
    const std::uint32_t again = share_sums(state);
    const bool split = item.slice.num_parts > 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = Lane::row() + 8 * h;
      if (item.slice.row_begin + row >= item.slice.row_end || (again >> row % 16 & 1) != 0) continue;
      if (split)
        store_partial(state, item, h);
      else
        store_row(state, item, h);
    }
    __syncwarp();
    if (again != 0) store_exact(item, again);
    if (!split && kGroup == 0) tile::count_rows(a, item);
  }
};

}  // namespace quire::cuda::sm90::mla
