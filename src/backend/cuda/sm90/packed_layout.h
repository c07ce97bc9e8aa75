// SPDX-License-Identifier: Apache-2.0
// Tiles of packed caches (vLLM's layout: K [pages, kv_heads, head_dim / x, page_size, x] with x of 16 bytes, V [pages,
// kv_heads, head_dim, page_size]) lie in shared memory.
//
// Keys: pieces of 8 tokens x 16 bytes, 128 bytes in a row, are core matrices of wgmma as they stand in the cache: no swizzle.
//
//     byte (key t, 16 bytes c of its dims) = (t / 8 * chunks + c) * 128 + t % 8 * 16
//
// Values: rows of 16, 32 or 64 tokens of a dim, as many as 64 and the page have for common divisor. wgmma takes them as an
// operand that is not transposed, for tokens are what it sums over.
//
//     element (token t, dim d) = (t / row * head_dim + d) * row + t % row
//
// Rows of 16-bit values are swizzled by their length of 32, 64 or 128 bytes; codes are not.
#pragma once

#include <cstdint>

#include "backend/cuda/hopper/instructions.h"
#include "backend/cuda/sm90/instance.h"

namespace quire::cuda::sm90 {

/// Layout of a tile of keys.
template <int kDim, int kElementBytes>
struct PackedKeys {
  static constexpr int kChunks = kDim * kElementBytes / 16;
  static constexpr int kChunkBytes = kPackedKeys * 16;       ///< distance of neighbouring 16-byte chunks of a row
  static constexpr int kGroupBytes = kChunks * kChunkBytes;  ///< distance of neighbouring groups of 8 tokens
  __device__ static int chunk(int key, int chunk) {
    return key / kPackedKeys * kGroupBytes + chunk * kChunkBytes + key % kPackedKeys * 16;
  }
};

/// Layout of a tile of values, whose rows have 16 << shift tokens.
template <int kDim, int kElementBytes>
struct PackedValues {
  int shift;
  __device__ explicit PackedValues(int page_size) : shift(shift_of(page_size)) {}
  __device__ static int shift_of(int page_size) { return min(__ffs(page_size) - 1, 6) - 4; }

  __device__ int row_bytes() const { return (kPackedValues * kElementBytes) << shift; }
  /// Bytes from dim 0 of token 0 to that of tokens 16 `step` and on, before the swizzle.
  __device__ int step(int step) const {
    return (step >> shift) * kDim * row_bytes() + (step & ((1 << shift) - 1)) * kPackedValues * kElementBytes;
  }
  /// The byte where an element begins.
  __device__ int element(int token, int dim) const {
    const int at = step(token / kPackedValues) + dim * row_bytes() + token % kPackedValues * kElementBytes;
    return kElementBytes == 1 ? at : at ^ swizzle(at);
  }
  /// The change of an offset among 16-bit values: the number of 16 bytes in its row, by the number of 128 bytes.
  __device__ int swizzle(int at) const { return (at >> 7 & ((2 << shift) - 1)) << 4; }

  /// 16-bit values from `tile` on as wgmma takes them, 8 dims after 8 dims.
  __device__ hopper::Swizzle swizzle_mode() const { return static_cast<hopper::Swizzle>(3 - shift); }
  __device__ std::uint32_t stride() const { return static_cast<std::uint32_t>(8 * row_bytes()); }
  static_assert(static_cast<int>(hopper::Swizzle::bytes32) == 3 && static_cast<int>(hopper::Swizzle::bytes128) == 1);
};

}  // namespace quire::cuda::sm90
