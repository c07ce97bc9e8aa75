// SPDX-License-Identifier: Apache-2.0
// Units of keys and values on their way to a warp's shared memory, 16 bytes a lane (cp.async). No other warp takes part.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/sm90/cluster/memory.h"
#include "backend/gpu/args.h"
#include "backend/gpu/pages.h"

namespace quire::cuda::sm90::cluster {

/// Keys that the row sees: positions [begin, end) of its request.
struct Seen {
  std::int32_t begin = 0, end = 0;
  __device__ bool has(std::int32_t position) const { return position >= begin && position < end; }
};

/// Place of a unit: page_size is a multiple of kUnitKeys, so a unit is in one page.
struct Place {
  std::int32_t page = -1, token = 0;  ///< page -1: none
};

/// Places of a warp's units, from the block table: a unit a lane, 32 at a time.
struct PlaceWalk {
  const gpu::AttendArgs& a;
  const int page_shift;   ///< logarithm of the page size; -1: the size is no power of two
  const int req, stride;  ///< keys from unit to unit of the warp

  __device__ Place look_up(std::int32_t first) const {
    const std::int32_t position = first + static_cast<int>(threadIdx.x) % 32 * stride;
    const std::int32_t column = page_shift >= 0 ? position >> page_shift : position / a.page_size;
    if (column >= a.block_table.columns) return {};
    const std::int32_t page = static_cast<const std::int32_t*>(a.block_table.data)[req * a.block_table.row_stride + column];
    return {page < a.num_pages ? page : -1, position - column * a.page_size};  // A negative entry is no page.
  }
  __device__ static Place of_unit(const Place& looked_up, int unit) {
    return {__shfl_sync(~0u, looked_up.page, unit % 32), __shfl_sync(~0u, looked_up.token, unit % 32)};
  }
};

/// Copies units of one request and KV head.
template <typename Memory>
struct KeyCopies {
  using Unit = typename Memory::Unit;
  using Rows = typename Memory::Rows;
  static constexpr int kChunks = Rows::kChunks, kRowsAtOnce = 32 / kChunks;

  const gpu::AttendArgs& a;
  const std::int32_t kv_head;
  const Seen seen;
  const Byte *keys, *values;  ///< address that the lane copies first in a unit at token 0 of page 0

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int row_bytes(const gpu::RowSource& cache) {
    return static_cast<std::int32_t>(cache.strides.token) * Memory::kBytes;
  }
  __device__ static KeyCopies of(const gpu::AttendArgs& a, std::int32_t kv_head, const Seen& seen) {
    const auto first_of = [&](const gpu::RowSource& cache) {
      const Byte* const row = static_cast<const Byte*>(cache.data) + cache.strides.row(0, kv_head, 0) * Memory::kBytes;
      return row + lane() / kChunks * row_bytes(cache) + lane() % kChunks * 16;
    };
    return {a, kv_head, seen, first_of(a.cache_k), first_of(a.cache_v)};
  }

  /// Rows that are not seen become 0, and are not read. This lane's rows are `row`, `row` + kRowsAtOnce, and so on, counted from
  /// the first that is seen; `from` is what the lane would copy at token 0 of page 0.
  __device__ static void copy(Rows& to, const gpu::RowSource& cache, const Byte* from, const Place& at, std::uint32_t row,
                              std::uint32_t num_seen) {
    const Byte* at_row = from + cache.strides.row(max(at.page, 0), 0, at.token) * Memory::kBytes;
    const int step = kRowsAtOnce * row_bytes(cache);
#pragma unroll
    for (int i = 0; i < kUnitKeys; i += kRowsAtOnce, at_row += step)
      ptx::copy_async_16(to.chunk(i + lane() / kChunks, lane() % kChunks), at_row, row + i < num_seen ? 16 : 0);
  }
  /// A group of copies, of no bytes where the warp has no such unit.
  __device__ void start(Unit& unit, const Place& at, std::int32_t first) const {
    if (first < seen.end) {
      const auto row = static_cast<std::uint32_t>(first + lane() / kChunks - seen.begin);  // wraps around before the first
      const std::uint32_t num_seen = at.page >= 0 ? static_cast<std::uint32_t>(seen.end - seen.begin) : 0;
      if (at.page < 0 && max(first, seen.begin) < min(first + kUnitKeys, seen.end)) gpu::note_missing_page(a);
      copy(unit.keys, a.cache_k, keys, at, row, num_seen);
      copy(unit.values, a.cache_v, values, at, row, num_seen);
    }
    ptx::commit_copies();
  }
};

}  // namespace quire::cuda::sm90::cluster
