// SPDX-License-Identifier: Apache-2.0
// The query rows of an item in shared memory: boxes of 64 rows x 64 dims, swizzled as tiles of keys are.
#pragma once

#include "backend/cuda/sm90/mla/memory.h"

namespace quire::cuda::sm90::mla {

/// By all consumer threads. Rows that do not exist become zeros.
__device__ inline void load_query(const gpu::AttendArgs& a, const tile::Item& item, Shared& shared) {
  constexpr int kChunks = kKeyDim / 8, kThreadsOfRow = kConsumerThreads / kRows;
  const int row = static_cast<int>(threadIdx.x) / kThreadsOfRow, score_row = item.slice.row_begin + row;
  const bool exists = score_row < item.slice.row_end;
  const std::int64_t token = item.lengths.first_token + score_row / a.group, head = item.kv_head * a.group + score_row % a.group;
  const auto* from = static_cast<const std::uint16_t*>(a.query.data) + (exists ? a.query.strides.row(0, head, token) : 0);
#pragma unroll 3
  for (int chunk = static_cast<int>(threadIdx.x) % kThreadsOfRow; chunk < kChunks; chunk += kThreadsOfRow)
    ptx::copy_async_16(shared.query.boxes[chunk / 8] + row * kRowBytes + (chunk % 8 ^ row % 8) * 16, from + chunk * 8,
                       exists ? 16 : 0);
  ptx::commit_copies();
  ptx::wait_copies<0>();
  hopper::fence_shared();
  hopper::named_barrier<2, kConsumerThreads>();
}

}  // namespace quire::cuda::sm90::mla
