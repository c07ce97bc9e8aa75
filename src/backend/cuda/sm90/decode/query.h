// SPDX-License-Identifier: Apache-2.0
// The query rows of a piece of decode, to shared memory in the type of the cache's keys.
#pragma once

#include "backend/cuda/sm90/decode/warpgroup.h"

namespace quire::cuda::sm90::decode {

/// Copies rows of the query, zeros where there is no row, by all warpgroups together, or each its own. Rows go past registers,
/// because they are asked for while keys are on their way. T: type of the query; under f16, e4m3fn codes become f16.
template <typename T, typename Memory>
__device__ inline void load_query(const gpu::AttendArgs& a, const Warpgroup<Memory>& group, const Job& job) {
  using Tiles = typename Memory::Tiles;
  constexpr bool kTakesCodes = Tiles::kElementBytes == 1 && T::kDType == DType::f16;
  constexpr int kChunks = Memory::kDim / 8, kRows = Memory::kRows;
  const int first = group.first_row(job), rows = group.num_rows(job);
  const int threads = group.by_rows(job) ? 128 : Memory::kConsumerThreads;
  group.sync_all_groups();  // the last query is used up, and so are the results that warpgroups sent
  Byte* const to = group.query_rows(job);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % threads; i < kRows * kChunks; i += threads) {
    const int row = i / kChunks, chunk = i % kChunks, from = first + (row < rows ? row : 0);
    const int query_row = group.query_row(from);
    const std::int64_t token = job.item.lengths.first_token + query_row;
    const std::int64_t at = a.query.strides.row(0, job.item.kv_head * a.group + from - query_row * a.group, token) + chunk * 8;
    const auto* dims = static_cast<const std::uint16_t*>(a.query.data) + at;
    Byte* const row_to = to + (chunk / 8 * kRows + row) * Memory::kQueryBytes;
    if constexpr (kTakesCodes) {
      if (a.query.dtype == DType::fp8_e4m3fn) {
        Tiles::put_codes(row_to, row % 8, chunk % 8, static_cast<const Byte*>(a.query.data) + at, row < rows);
        continue;
      }
    }
    if constexpr (Tiles::kScalesQuery) {
      const float unit = Tiles::put_query(row_to, row % 8, chunk % 8, dims, row < rows);
      if (chunk == 0) group.query_units(job)[row] = unit;
    } else {
      Tiles::copy_query(row_to, row % 8, chunk % 8, dims, row < rows);
    }
  }
  ptx::commit_copies();
  ptx::wait_copies<0>();
  hopper::fence_shared();
  group.sync_all_groups();
}

}  // namespace quire::cuda::sm90::decode
