// SPDX-License-Identifier: Apache-2.0
// The end of an item of MLA decode: rows of one part to the output, parts of rows to the workspace (merge.h).
//
// Instructions that run once for each item come from L2 or memory: 60 KiB of them cost 4 us an item (128 x 2k keys, H100). So a
// lane does for a row what a row takes, and rows go through the memory of the query to the output.
#pragma once

#include "backend/cuda/sm90/mla/exact_rows.h"
#include "backend/cuda/sm90/mla/scores.h"

namespace quire::cuda::sm90::mla {

/// T: type of the query and the output.
template <typename T, int kGroup>
struct Epilogue {
  using Softmax = Online<T>;
  using State = typename Softmax::State;
  static constexpr std::int64_t kNowhere = INT64_MIN;

  const gpu::AttendArgs& a;
  Shared& shared;

  __device__ static void sync_consumers() { hopper::named_barrier<2, kConsumerThreads>(); }
  // Addresses that follow from these are computed where they are used: the loop over tiles has no registers for them.
  __device__ static int thread() {
    int x = static_cast<int>(threadIdx.x) % 128;
    hopper::compute_here(x);
    return x;
  }
  __device__ static int warp() { return thread() / 32; }
  __device__ static int lane() { return thread() % 32; }

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
#pragma unroll 1
      for (int r = 0; r < 8; ++r) rows |= (lanes >> 4 * r & 15u) != 0 ? 1u << (r + 8 * h) : 0u;
    }
    return rows;
  }

  /// Gives sums and maxima of all rows to all warps. Rows whose sums are not finite, as bits of the warp's 16.
  __device__ std::uint32_t share_sums(State& state) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 1);
      state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], 2);
      if (threadIdx.x % 4 != 0) continue;
      shared.sum[kGroup][Lane::row() + 8 * h] = state.sum[h];
      shared.max[kGroup][Lane::row() + 8 * h] = state.max[h];
    }
    const std::uint32_t rows = not_finite(state);
    if (lane() == 0) shared.not_finite[kGroup][warp()] = rows;
    sync_consumers();
    return shared.not_finite[0][warp()] | shared.not_finite[1][warp()];
  }

  /// Row lane % 16 of the warp.
  __device__ int row_of_lane() const { return warp() * 16 + lane() % 16; }
  __device__ semantics::SoftmaxState state_of_lane() const {
    const int row = row_of_lane();
    return {(shared.max[kGroup][row] - Softmax::kShift) * tile::kLn2, shared.sum[0][row] + shared.sum[1][row]};
  }

  /// Index among the partial results of the row that is row 0 of the tile.
  __device__ std::int64_t partial_row(const tile::Item& item) const {
    return tile::partial_tile(a, item, item.slice.part) * a.work.tile_rows;
  }

  /// `exists`: of the lane's row.
  __device__ void store_partial(const State& state, const tile::Item& item, bool exists) const {
    if (kGroup == 0 && lane() < 16 && exists) {
      const semantics::SoftmaxState natural = state_of_lane();
      *reinterpret_cast<float2*>(a.work.partial_states + (partial_row(item) + row_of_lane()) * 2) =
          make_float2(natural.max, natural.sum);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (__shfl_sync(~0u, static_cast<int>(exists), lane() / 4 + 8 * h) == 0) continue;
      float* const to =
          a.work.partial_acc + (partial_row(item) + Lane::row() + 8 * h) * kValueDim + kGroup * kHalfDim + Lane::column();
#pragma unroll
      for (int i = 0; i < kHalfDim / 8; ++i)
        *reinterpret_cast<float2*>(to + i * 8) = make_float2(state.out[4 * i + 2 * h], state.out[4 * i + 2 * h + 1]);
    }
  }

  /// 16 bytes of a row in the query's memory.
  __device__ unsigned char* staged(int row, int chunk) const {
    return shared.query.boxes[kGroup * kHalfBoxes + chunk / 8] + row * kRowBytes + (chunk % 8 ^ row % 8) * 16;
  }
  __device__ void stage(const State& state, const float (&factor)[2]) const {
    const std::uint32_t at = ptx::shared_address(staged(row_of_lane(), lane() / 16));
#pragma unroll
    for (int j = 0; j < kHalfDim / 16; ++j) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int i = 4 * (2 * j + m / 2) + 2 * (m % 2);
        pairs[m] = T::pack(state.out[i] * factor[m % 2], state.out[i + 1] * factor[m % 2]);
      }
      hopper::store_matrices((at ^ j % 4 * 32) + j / 4 * kBoxBytes, pairs);
    }
  }

  /// The warpgroup's half of finished rows, 512 bytes of a row at a time.
  __device__ void store_rows(const State& state, const tile::Item& item, bool exists) const {
    tile::OutputRow of_lane{kNowhere, 0.0f};
    if (lane() < 16 && exists)
      of_lane = tile::finish_row<tile::Output::own>(a, item, item.slice.row_begin + row_of_lane(), state_of_lane(), kGroup == 0);
    const float factor[2] = {__shfl_sync(~0u, of_lane.factor, lane() / 4), __shfl_sync(~0u, of_lane.factor, lane() / 4 + 8)};
    stage(state, factor);
    __syncwarp();
#pragma unroll 4
    for (int r = 0; r < 16; ++r) {
      const std::int64_t to = __shfl_sync(~0u, of_lane.offset, r);
      const uint4 dims = *reinterpret_cast<const uint4*>(staged(warp() * 16 + r, lane()));
      if (to != kNowhere) store_chunk(to, kGroup * kHalfDim + lane() * 8, dims);
    }
  }
  /// 8 dims of the row at `to`. a.output_pairs: rows are written 16 bytes at a time.
  __device__ void store_chunk(std::int64_t to, int dim, const uint4& dims) const {
    auto* const row = static_cast<std::uint16_t*>(a.output) + to;
    if (a.output_pairs) {
      *reinterpret_cast<uint4*>(row + dim) = dims;
      return;
    }
    const std::uint32_t pairs[] = {dims.x, dims.y, dims.z, dims.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) row[(dim + i) * a.output_strides.dim] = static_cast<std::uint16_t>(pairs[i / 2] >> i % 2 * 16);
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
    const bool exists = item.slice.row_begin + row_of_lane() < item.slice.row_end && (again >> lane() % 16 & 1) == 0;
    if (item.slice.num_parts > 1) {
      store_partial(state, item, exists);
    } else {
      store_rows(state, item, exists);
      if (kGroup == 0) tile::count_rows(a, item);
    }
    __syncwarp();
    if (again != 0) store_exact(item, again);
  }
};

}  // namespace quire::cuda::sm90::mla
