// SPDX-License-Identifier: Apache-2.0
// Tiles of packed caches (K [pages, kv_heads, head_dim / x, page_size, x] with x of 16 bytes, V [pages, kv_heads, head_dim,
// page_size]) whose page is a multiple of 8.
//
// Keys: 8 tokens x 16 bytes are 128 neighbouring bytes of the cache, and become rows of dims, as in other layouts.
//
// Values: 8 tokens of a dim are neighbours in the cache and in the tile. A tile has a row for each dim, which ldmatrix loads as
// the operand of the second product without a transposition.
//
// This step's rows are rows of dims. A tile without cached keys keeps rows of dims. In a tile with cached keys and new rows,
// patch() writes the new values into their columns once the copies are complete.
#pragma once

#include "backend/cuda/mma/tile_source.h"
#include "backend/cuda/tile/convert_fp8.h"

namespace quire::cuda::mma {

/// Swizzle of values in a tile of kKeys tokens: rows of kKeys elements, one per dim. Pieces of 8 tokens are swapped by the row,
/// so that the eight rows of an ldmatrix phase fall into eight groups of banks.
template <int kKeys>
struct DimRows {
  static constexpr int kEights = kKeys / 8;
  __device__ static int swizzle(int dim) { return dim * kKeys / 64 % kEights; }
  __device__ static int at(int dim, int eight) { return dim * kKeys + (eight ^ swizzle(dim)) * 8; }
  __device__ static int element(int dim, int key) { return at(dim, key / 8) + key % 8; }
};

/// Operands of the second product from such a tile.
template <int kDim, int kKeys>
struct DimValues {
  using Layout = DimRows<kKeys>;
  const std::uint16_t* v;
  int lane_row;  ///< bytes from the tile's begin to the lane's row of the first operand
  __device__ explicit DimValues(const std::uint16_t* tile) : v(tile) {
    const int lane = threadIdx.x % 32;
    lane_row = 2 * Layout::at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }
  /// Keys 16 `step` and on, dims 16 `pair` and on: b[0], b[1] of the first eight dims, b[2], b[3] of the others. 16 rows further
  /// on pieces are swapped alike.
  __device__ void load(std::uint32_t (&b)[4], int step, int pair) const {
    const auto at = static_cast<std::uint32_t>((lane_row ^ step * 32) + pair * 16 * kKeys * 2);
    ptx::load_matrices(b, ptx::shared_address(v) + at);
  }
  __device__ std::uint32_t at(int key, int dim) const { return v[Layout::element(dim, key)]; }
};

/// Copies 8 bytes from global to shared memory; `bytes` = 0 writes zeros and reads nothing.
__device__ inline void copy_async_8(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(ptx::shared_address(shared)), "l"(global), "r"(bytes));
}

template <int kCacheBytes>
struct PackedSource : TileSource<kCacheBytes> {
  using Base = TileSource<kCacheBytes>;
  using Base::a, Base::item;
  static constexpr bool kPacked = true;
  static constexpr int kBlockKeys = 8;  ///< keys of a block, which share a page
  static constexpr int kUnrolled = 2;

  __device__ bool by_blocks() const { return true; }
  /// The tile at `first` has cached keys: its values are rows of dims.
  __device__ bool is_packed(int first) const { return first < item.lengths.cached_len; }

  /// Finds the 8 aligned keys that begin at `position`, if the segment [begin, end) has cached keys among them.
  __device__ BlockStarts block(int position, int begin, int end) const {
    return this->has_cached(position, kBlockKeys, begin, end) ? this->cached_rows(position) : this->no_rows();
  }

  /// A tile that is not packed has fresh keys alone.
  template <int kBytes, int kDim, int kKeys, int kPitch, int kThreads, typename Starts>
  __device__ void copy_by_blocks(Byte* tile, bool keys, int first, int begin, int end, int thread, Starts&& starts) const {
    this->template copy_fresh_rows<kDim, kKeys, kPitch, kThreads>(tile, keys, first, begin, end, thread, starts);
  }

  /// A tile of kKeys keys of kDim elements by threads 0 .. kThreads - 1 of a group, `begin` and `end` as block() had them. Rows
  /// are kPitch bytes apart; those of keys that are not in the segment become zeros.
  template <int kDim, int kKeys, int kPitch, int kThreads, typename Starts>
  __device__ void copy_keys(Byte* tile, int first, int begin, int end, int thread, Starts&& starts) const {
    constexpr int kChunks = kDim * kCacheBytes / 16, kPieces = kKeys * kChunks;
    const semantics::KvStrides& s = a.cache_k.strides;
    const std::int64_t token = s.token * kCacheBytes, chunk_bytes = s.chunk * kCacheBytes;
    const auto copy = [&](int i, bool some_fresh) {
      const int key = i % 8 + i / (8 * kChunks) * 8, chunk = i / 8 % kChunks, position = first + key;
      const bool seen = position >= begin && position < end;
      const Byte* from = starts(key / kBlockKeys) + key % kBlockKeys * token + chunk * chunk_bytes;
      if (some_fresh && seen && position >= item.lengths.cached_len) from = this->fresh_row(a.key, position) + chunk * 16;
      ptx::copy_async_16(tile + key * kPitch + chunk * 16, from, seen ? 16 : 0);
    };
    if (kCacheBytes == 2 && item.lengths.cached_len - first < kKeys) {  // few tiles: small code rather than fast
#pragma unroll 1
      for (int i = 0; i < kPieces; i += kThreads) copy(i + thread, true);
    } else {
#pragma unroll kUnrolled
      for (int i = 0; i < kPieces; i += kThreads) copy(i + thread, false);
    }
  }

  /// Pieces of 8 tokens of a dim. A piece is copied whole if one of its tokens is cached and in the segment, and becomes zeros
  /// otherwise; codes lie as in the cache, without swaps. `start`: of block thread % (kKeys / 8).
  template <int kDim, int kKeys, int kThreads>
  __device__ void copy_values(Byte* tile, int first, int begin, int end, int thread, const Byte* start) const {
    constexpr int kEights = kKeys / 8, kBytes = 8 * kCacheBytes, kStep = kThreads / kEights;
    static_assert(kThreads % kEights == 0 && kDim % kStep == 0);
    const int eight = thread % kEights, position = first + eight * 8;
    const int bytes = this->has_cached(position, 8, begin, end) ? kBytes : 0;
    const std::int64_t dim_bytes = a.cache_v.strides.dim * kCacheBytes;
    const Byte* from = start + thread / kEights * dim_bytes;
#pragma unroll kUnrolled
    for (int i = 0; i < kDim; i += kStep, from += kStep * dim_bytes) {
      const int dim = i + thread / kEights;
      if constexpr (kCacheBytes == 2)
        ptx::copy_async_16(tile + 2 * DimRows<kKeys>::at(dim, eight), from, bytes);
      else
        copy_async_8(tile + dim * kKeys + eight * 8, from, bytes);
    }
  }

  /// Whether the tile needs patch(): its copies bring tokens that no row sees or that are not cached, and no rows of `value`.
  template <int kKeys>
  __device__ bool needs_patch(int first, int begin, int end) const {
    return first < begin || min(end, item.lengths.cached_len) - first < kKeys;
  }
  /// Writes this step's values, and zeros, into the columns of tokens that are not cached in the segment. Copies are complete.
  template <int kDim, int kKeys, int kThreads>
  __device__ void patch(std::uint16_t* values, int first, int begin, int end, int thread) const {
    constexpr int kChunks = kDim / 8;
    const int cached_end = min(end, item.lengths.cached_len);
#pragma unroll 1
    for (int i = thread; i < kKeys * kChunks; i += kThreads) {
      const int key = i / kChunks, chunk = i % kChunks, position = first + key;
      if (position >= begin && position < cached_end) continue;
      uint4 row{};
      if (position >= begin && position < end)
        row = *reinterpret_cast<const uint4*>(this->fresh_row(a.value, position) + chunk * 16);
      const std::uint32_t words[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
      for (int d = 0; d < 8; ++d)
        values[DimRows<kKeys>::element(chunk * 8 + d, key)] = static_cast<std::uint16_t>(words[d / 2] >> d % 2 * 16);
    }
  }
};

/// Rows of kKeys codes, one a dim and without a gap, to a tile of 16-bit values; by threads 0 .. kThreads - 1 of a group.
template <typename T, int kDim, int kKeys, int kThreads>
__device__ inline void convert_dim_rows(std::uint16_t* tile, const Byte* codes, bool e4m3, int thread) {
  constexpr int kChunks = kKeys / 16;  // chunks of a row
#pragma unroll
  for (int i = 0; i < kDim * kChunks; i += kThreads) {
    const int at = i + thread, dim = at / kChunks, eight = at % kChunks * 2;
    const Chunk16 pairs = convert_chunk<T>(codes + at * 16, e4m3);
    *reinterpret_cast<uint4*>(tile + DimRows<kKeys>::at(dim, eight)) = pairs.low;
    *reinterpret_cast<uint4*>(tile + DimRows<kKeys>::at(dim, eight + 1)) = pairs.high;
  }
}

}  // namespace quire::cuda::mma
