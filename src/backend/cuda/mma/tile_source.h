// SPDX-License-Identifier: Apache-2.0
// Copies of the rows of a key tile to shared memory: from the paged cache for positions below cached_len, from this step's `key`
// and `value` above. Positions outside the segment become zeros and are never read.
#pragma once

#include <cstdint>

#include "backend/cuda/mma/score_rows.h"
#include "backend/cuda/ptx.h"
#include "backend/gpu/args.h"
#include "backend/gpu/pages.h"

namespace quire::cuda::mma {

/// Start of one row; null = the row is zeros.
struct RowAddress {
  const Byte* k = nullptr;
  const Byte* v = nullptr;
  bool fresh = false;  ///< the row is in `key` and `value`, whose strides and type differ from the cache's
};

/// Addresses in the caches of K and V at which a block begins. A block is kBlockKeys aligned cached keys of one page.
struct BlockStarts {
  const Byte* k = nullptr;
  const Byte* v = nullptr;
};

/// The keys of one item. kCacheBytes: size of a cache element; `key` and `value` have 2-byte elements.
template <int kCacheBytes>
struct TileSource {
  const gpu::AttendArgs& a;
  const Item& item;
  bool whole_chunks;
  static constexpr bool kPacked = false;
  static constexpr int kBlockKeys = 16;  ///< keys of block()

  /// Addresses of the key and the value at `position`. They are cached, and some row sees them or another key of their page.
  __device__ BlockStarts cached_rows(int position) const {
    const std::int64_t id = gpu::seen_page_at(a, item.slice.req, position / a.page_size), offset = position % a.page_size;
    return {static_cast<const Byte*>(a.cache_k.data) + a.cache_k.strides.row(id, item.kv_head, offset) * kCacheBytes,
            static_cast<const Byte*>(a.cache_v.data) + a.cache_v.strides.row(id, item.kv_head, offset) * kCacheBytes};
  }
  /// Addresses for copies of 0 bytes: such a copy reads nothing, but needs an address.
  __device__ BlockStarts no_rows() const {
    return {static_cast<const Byte*>(a.cache_k.data), static_cast<const Byte*>(a.cache_v.data)};
  }

  __device__ static constexpr bool is_packed(int) { return false; }

  /// 16 aligned keys never straddle pages, and every row is aligned 16-byte chunks.
  __device__ bool by_blocks() const { return whole_chunks && a.page_size % 16 == 0; }

  /// Whether the segment [begin, end) has cached keys among `count` keys from `position` on.
  __device__ bool has_cached(int position, int count, int begin, int end) const {
    return max(position, begin) < min(position + count, min(end, item.lengths.cached_len));
  }
  /// The block that begins at `position`, or no_rows() if the segment [begin, end) has no cached keys of it.
  __device__ BlockStarts block(int position, int begin, int end) const {
    return has_cached(position, kBlockKeys, begin, end) ? cached_rows(position) : no_rows();
  }

  __device__ const Byte* fresh_row(const gpu::RowSource& rows, int position) const {
    const std::int64_t token = item.lengths.first_token + position - item.lengths.context_len;
    return static_cast<const Byte*>(rows.data) + rows.strides.row(0, item.kv_head, token) * 2;
  }
  __device__ RowAddress row(int position, int begin, int end) const {
    if (position < begin || position >= end) return {};
    if (position >= item.lengths.cached_len) return {fresh_row(a.key, position), fresh_row(a.value, position), true};
    const BlockStarts cached = cached_rows(position);
    return {cached.k, cached.v, false};
  }

  /// Size of a copy of the key at `position`, bytes: 16, or 0 if the segment [begin, end) does not have the key.
  __device__ static int bytes_of(int position, int begin, int end) { return position >= begin && position < end ? 16 : 0; }

  /// A tile of kKeys rows of kDim elements of kBytes (kCacheBytes, or 2 where all keys are fresh), kPitch bytes apart, by threads
  /// 0 .. kThreads - 1 of a group. starts(b): where block b begins. Needs by_blocks().
  template <int kBytes, int kDim, int kKeys, int kPitch, int kThreads, typename Starts>
  __device__ void copy_by_blocks(Byte* tile, bool keys, int first, int begin, int end, int thread, Starts&& starts) const {
    if (kBytes == 2 && item.lengths.cached_len - first < kKeys)
      return copy_fresh_rows<kDim, kKeys, kPitch, kThreads>(tile, keys, first, begin, end, thread, starts);
    if (first >= begin && end - first >= kKeys)  // every key of the tile exists, as in most tiles: copies need no sizes
      copy_cached<kBytes, kDim, kKeys, kPitch, kThreads>(tile, keys, thread, starts, [](int) { return 16; });
    else
      copy_cached<kBytes, kDim, kKeys, kPitch, kThreads>(tile, keys, thread, starts,
                                                         [&](int key) { return bytes_of(first + key, begin, end); });
  }

  /// Copies a tile as copy_by_blocks() does, if some of its rows are fresh or none is cached. Few tiles are like that, so this
  /// code is small rather than fast.
  template <int kDim, int kKeys, int kPitch, int kThreads, typename Starts>
  __device__ void copy_fresh_rows(Byte* tile, bool keys, int first, int begin, int end, int thread, Starts&& starts) const {
    constexpr int kChunks = kDim * 2 / 16;
    const int chunk = thread % kChunks;
    const std::int64_t token = (keys ? a.cache_k : a.cache_v).strides.token * 2;
#pragma unroll 1
    for (int key = thread / kChunks; key < kKeys; key += kThreads / kChunks) {
      const Byte* from = starts(key / kBlockKeys) + key % kBlockKeys * token;
      const bool fresh = first + key >= item.lengths.cached_len && first + key < end;
      if (fresh) from = fresh_row(keys ? a.key : a.value, first + key);
      ptx::copy_async_16(tile + key * kPitch + chunk * 16, from + chunk * 16, bytes_of(first + key, begin, end));
    }
  }

  /// Copies a tile as copy_by_blocks() does, if all of its rows are cached. bytes(key): size of a copy of key `key`, 16 or 0.
  template <int kBytes, int kDim, int kKeys, int kPitch, int kThreads, typename Starts, typename Bytes>
  __device__ void copy_cached(Byte* tile, bool keys, int thread, Starts&& starts, Bytes&& bytes) const {
    constexpr int kChunks = kDim * kBytes / 16, kRowsPerPass = kThreads / kChunks;
    const int row = thread / kChunks, chunk = thread % kChunks;
    const std::int64_t token = (keys ? a.cache_k : a.cache_v).strides.token * kBytes;
    tile += row * kPitch + chunk * 16;
    if constexpr (kRowsPerPass <= kBlockKeys) {
      const std::int64_t mine = row * token + chunk * 16;
#pragma unroll
      for (int block = 0; block < kKeys; block += kBlockKeys) {
        const Byte* from = starts(block / kBlockKeys) + mine;
#pragma unroll
        for (int i = 0; i < kBlockKeys; i += kRowsPerPass, from += kRowsPerPass * token)
          ptx::copy_async_16(tile + (block + i) * kPitch, from, bytes(block + i + row));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kKeys; i += kRowsPerPass) {
        const int key = i + row;
        const Byte* from = starts(key / kBlockKeys) + key % kBlockKeys * token + chunk * 16;
        ptx::copy_async_16(tile + i * kPitch, from, bytes(key));
      }
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
};

}  // namespace quire::cuda::mma
