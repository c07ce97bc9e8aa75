// SPDX-License-Identifier: Apache-2.0
// Copies of the rows of a key tile to shared memory: from the paged cache for positions below cached_len, from this step's `key`
// and `value` above. Positions outside the segment become zeros and are never read.
#pragma once

#include <cstdint>

#include "backend/cuda/ptx.h"
#include "backend/cuda/tile/finish.h"
#include "backend/gpu/args.h"

namespace quire::cuda::mma {

using namespace tile;  // the parts of a tile that both tensor-core kernels use

using Byte = unsigned char;

/// Start of one row; null = the row is zeros.
struct RowAddress {
  const Byte* k = nullptr;
  const Byte* v = nullptr;
  bool fresh = false;  ///< the row is in `key` and `value`, whose strides and type differ from the cache's
};

/// Element offsets of 16 aligned cached keys that share a page.
struct BlockOffsets {
  std::int64_t k = 0, v = 0;
};

/// The keys of one item. kCacheBytes: size of a cache element; `key` and `value` have 2-byte elements.
template <int kCacheBytes>
struct TileSource {
  const gpu::AttendArgs& a;
  const Item& item;
  bool whole_chunks;
  static constexpr bool kPacked = false;
  static constexpr int kBlockKeys = 16;  ///< keys of block()

  __device__ std::int64_t page(int position) const {
    const gpu::BlockTable& t = a.block_table;
    return semantics::load_index(t.data, t.dtype, item.slice.req * t.row_stride + position / a.page_size * t.column_stride);
  }

  __device__ static constexpr bool is_packed(int) { return false; }

  /// 16 aligned keys never straddle pages, and every row is aligned 16-byte chunks.
  __device__ bool by_blocks() const { return whole_chunks && a.page_size % 16 == 0; }

  /// Offsets of the block that begins at `position`, if the segment [begin, end) has cached keys of that block.
  __device__ BlockOffsets block(int position, int begin, int end) const {
    if (position < begin - 15 || position >= min(end, item.lengths.cached_len)) return {};
    const std::int64_t id = page(position), offset = position % a.page_size;
    return {a.cache_k.strides.row(id, item.kv_head, offset), a.cache_v.strides.row(id, item.kv_head, offset)};
  }

  __device__ const Byte* fresh_row(const gpu::RowSource& rows, int position) const {
    const std::int64_t token = item.lengths.first_token + position - item.lengths.context_len;
    return static_cast<const Byte*>(rows.data) + rows.strides.row(0, item.kv_head, token) * 2;
  }
  __device__ RowAddress row(int position, int begin, int end) const {
    if (position < begin || position >= end) return {};
    if (position >= item.lengths.cached_len) return {fresh_row(a.key, position), fresh_row(a.value, position), true};
    const std::int64_t id = page(position), offset = position % a.page_size;
    return {static_cast<const Byte*>(a.cache_k.data) + a.cache_k.strides.row(id, item.kv_head, offset) * kCacheBytes,
            static_cast<const Byte*>(a.cache_v.data) + a.cache_v.strides.row(id, item.kv_head, offset) * kCacheBytes, false};
  }

  /// A tile of kKeys rows of kDim elements of kBytes (kCacheBytes, or 2 where all keys are fresh), kPitch bytes apart, by threads
  /// 0 .. kThreads - 1 of a group. offsets(b) gives the BlockOffsets of block b. Needs by_blocks().
  template <int kBytes, int kDim, int kKeys, int kPitch, int kThreads, typename Offsets>
  __device__ void copy_by_blocks(Byte* tile, bool keys, int first, int begin, int end, int thread, Offsets&& offsets) const {
    constexpr int kChunks = kDim * kBytes / 16, kRowsPerPass = kThreads / kChunks;
    const int row = thread / kChunks, chunk = thread % kChunks;
    const gpu::RowSource& cached = keys ? a.cache_k : a.cache_v;
    const std::int64_t token = cached.strides.token * kBytes;
    const auto block_start = [&](int block) {
      const BlockOffsets at = offsets(block);
      return static_cast<const Byte*>(cached.data) + chunk * 16 + (keys ? at.k : at.v) * kBytes;
    };
    const auto copy = [&](int key, const Byte* from) {
      const int position = first + key;
      ptx::copy_async_16(tile + key * kPitch + chunk * 16, from, position >= begin && position < end ? 16 : 0);
    };
    if (kBytes == 2 && item.lengths.cached_len - first < kKeys) {  // few tiles have fresh rows: small code rather than fast
#pragma unroll 1
      for (int key = row; key < kKeys; key += kRowsPerPass) {
        const Byte* from = block_start(key / 16) + key % 16 * token;
        const bool fresh = first + key >= item.lengths.cached_len && first + key < end;
        copy(key, fresh ? fresh_row(keys ? a.key : a.value, first + key) + chunk * 16 : from);
      }
    } else if constexpr (kRowsPerPass <= 16) {
#pragma unroll
      for (int block = 0; block < kKeys / 16; ++block) {
        const Byte* from = block_start(block) + row * token;
#pragma unroll
        for (int i = 0; i < 16; i += kRowsPerPass) copy(block * 16 + i + row, from + i * token);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kKeys; i += kRowsPerPass) copy(i + row, block_start((i + row) / 16) + (i + row) % 16 * token);
    }
  }

  /// Chunk `chunk` (16 bytes) of a row with elements of kBytes.
  template <int kBytes>
  __device__ void copy_chunk(Byte* to, const Byte* row, const semantics::KvStrides& strides, int chunk) const {
    if (whole_chunks) {
      // A copy of 0 bytes writes zeros; its source is not read, but must be an address.
      const Byte* from = row != nullptr ? row + chunk * 16 : static_cast<const Byte*>(a.query.data);
      return ptx::copy_async_16(to, from, row != nullptr ? 16 : 0);
    }
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const std::int64_t element = strides.element(chunk * (16 / kBytes) + i / kBytes);
      to[i] = row != nullptr ? row[element * kBytes + i % kBytes] : Byte{0};
    }
  }
  template <int kBytes>
  __device__ void copy_row(Byte* to, const RowAddress& from, bool keys, int chunk) const {
    if (keys) copy_chunk<kBytes>(to, from.k, from.fresh ? a.key.strides : a.cache_k.strides, chunk);
    if (!keys) copy_chunk<kBytes>(to, from.v, from.fresh ? a.value.strides : a.cache_v.strides, chunk);
  }

  __device__ const Byte* query_row(int row) const {
    if (row >= item.slice.row_end) return nullptr;
    const std::int64_t token = item.lengths.first_token + row / a.group;
    return static_cast<const Byte*>(a.query.data) + a.query.strides.row(0, item.kv_head * a.group + row % a.group, token) * 2;
  }
};

}  // namespace quire::cuda::mma
