// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of decode: its barriers, its score rows of a piece, and the keys that they see.
#pragma once

#include "backend/cuda/sm90/decode/memory.h"

namespace quire::cuda::sm90::decode {

template <typename Memory>
struct Warpgroup {
  static constexpr int kGroups = Memory::kGroups, kRows = Memory::kRows;
  static constexpr int kEveryone = 8;  ///< barrier of all consumer warpgroups; 1, 2, ... are of one each

  const gpu::AttendArgs& a;
  typename Memory::Shared& shared;
  const int index = kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / 128;

  /// Number of the thread in its warpgroup.
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % 128; }

  // --- barriers ---

  __device__ void sync() const { hopper::sync_at(1 + index, 128); }
  __device__ void sync_all_groups() const { hopper::sync_at(kEveryone, Memory::kConsumerThreads); }
  /// All threads that use the tile at hand.
  __device__ void sync_users(const Job& job) const {
    if (by_rows(job))
      sync_all_groups();
    else
      sync();
  }
  /// Waits for the four warps; true if `mine` is true in one thread.
  __device__ bool any(bool mine) const { return !hopper::all_at(1 + index, 128, !mine); }
  /// Waits for all threads that use the tile at hand; true if `mine` is true in one.
  __device__ bool any_user(const Job& job, bool mine) const {
    if (by_rows(job)) return !hopper::all_at(kEveryone, Memory::kConsumerThreads, !mine);
    return any(mine);
  }

  // --- score rows ---

  /// Each warpgroup has score rows of its own and takes all tiles.
  __device__ static bool by_rows(const Job& job) { return Memory::kByRows && job.by_rows; }
  /// The warpgroup's first score row.
  __device__ int first_row(const Job& job) const {
    if constexpr (!Memory::kSlices) return 0;
    return job.item.slice.row_begin + (by_rows(job) ? index * kRows : 0);
  }
  __device__ int num_rows(const Job& job) const { return min(job.item.slice.row_end - first_row(job), kRows); }
  /// Query row of a score row. Most score rows are of a request's first query row, and divisions take long.
  __device__ int query_row(int score_row) const { return score_row < a.group ? 0 : score_row / a.group; }

  /// Score row of a column; the last row where the column has none. The row and its position are kept in no register: they are
  /// asked for where the tile is not full or the score not plain.
  __device__ int row_of(const Job& job, int column) const { return min(first_row(job) + column, job.item.slice.row_end - 1); }
  __device__ int q_pos(const Job& job, int column) const { return job.item.lengths.context_len + row_of(job, column) / a.group; }
  __device__ semantics::KeyRange keys_of_column(const Job& job, int column) const {
    return semantics::visible_range(q_pos(job, column), a.window);
  }

  /// The warpgroup's query rows, kRows * kQueryBytes for each 64 dims.
  __device__ Byte* query_rows(const Job& job) const {
    if constexpr (Memory::kByRows)
      if (job.by_rows && index > 0) return shared.found[index - 1].query[0];
    return shared.query[0];
  }
  /// The value that 1 in these rows stands for, where rows are scaled.
  __device__ float* query_units(const Job& job) const { return shared.query_units[by_rows(job) ? index : 0]; }

  /// Row of this step's keys or values at a position that is not cached.
  /// `head`: which of a tile's heads.
  __device__ const std::uint16_t* uncached_row(const gpu::RowSource& rows, const Job& job, int position, int head = 0) const {
    const std::int64_t token = job.item.lengths.first_token + position - job.item.lengths.context_len;
    return static_cast<const std::uint16_t*>(rows.data) + rows.strides.row(0, Memory::kHeads * job.item.kv_head + head, token);
  }
};

}  // namespace quire::cuda::sm90::decode
