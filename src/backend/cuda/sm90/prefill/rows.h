// SPDX-License-Identifier: Apache-2.0
// Threads of a consumer warpgroup of prefill, and the score rows that they have.
#pragma once

#include "backend/cuda/sm90/prefill/memory.h"

namespace quire::cuda::sm90::prefill {

/// The thread's rows of a tile are 64 group + 16 warp + lane / 4 + {0, 8}; its columns 8 i + 2 (lane % 4) + {0, 1}.
struct Lane {
  __device__ static int group() { return static_cast<int>(threadIdx.x) / 128; }
  __device__ static int warp_in_group() { return static_cast<int>(threadIdx.x) % 128 / 32; }
  __device__ static int row_in_group() { return warp_in_group() * 16 + static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 4 * 2; }
};

/// Score rows [first, end) of a tile are the warpgroup's.
struct Rows {
  int first, end;
};
/// Token and query head of a score row.
struct Place {
  int token, head;
};

/// A block of a pair, and its score rows of a tile: [rank * block_rows(), (rank + 1) * block_rows()), or all rows and the
/// output's dims from first_out_dim() on, where Memory::kSplitsValues.
template <typename Memory>
struct Block {
  using Job = typename Memory::Job;

  const HopperArgs& args;
  const PrefillMaps& maps;
  typename Memory::Shared& shared;
  const int rank;  ///< index of the block in its pair
  const gpu::AttendArgs& a = args.common;

  __device__ int block_rows() const { return Memory::kSplitsValues ? a.work.tile_rows : a.work.tile_rows / kPair; }
  /// The block's rows are the tile's from place_of_rows() * block_rows() on.
  __device__ int place_of_rows() const { return Memory::kSplitsValues ? 0 : rank; }
  __device__ int first_out_dim() const { return Memory::kSplitsValues ? rank * Memory::kOutDim : 0; }
  /// `yes`, but in one block alone of those with the same rows: it counts rows and writes what all of their dims have in common.
  __device__ bool in_one_block(bool yes) const {
    if constexpr (!Memory::kSplitsValues) return yes;
    return yes && rank == 0;
  }
  __device__ Rows rows_of(const gpu::WorkSlice& slice) const {
    const int block = slice.row_begin + place_of_rows() * block_rows(), first = block + 64 * Lane::group();
    return {first, min(min(first + 64, block + block_rows()), slice.row_end)};
  }

  /// Query row of the request to which score row `row` of the tile (0: its first) belongs. A tile has fewer than 512 rows, so
  /// that a product does for the division.
  __device__ int query_row(const Job& job, int row) const { return job.first_query + (row * shared.group_inverse >> 16); }
  /// Position of that query row, counted from the request's first key. Kernels of packed codes at head_dim 256 have no register
  /// for least_position: cuda_sm90.cpp gives them no such requests.
  __device__ int position_of(const Job& job, int row) const {
    const int position = job.item.lengths.context_len + query_row(job, row);
    if constexpr (Memory::kPacked && Memory::kCodes && Memory::kDim == 256) return position;
    return max(position, job.least_position);
  }
  __device__ Place place_of(const Job& job, int row) const {
    const int query = query_row(job, row);
    return {job.item.lengths.first_token + query, job.item.kv_head * a.group + row - (query - job.first_query) * a.group};
  }
};

}  // namespace quire::cuda::sm90::prefill
