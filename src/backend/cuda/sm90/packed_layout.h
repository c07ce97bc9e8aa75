// How tiles of packed caches (vLLM's layout: K [pages, kv_heads, head_dim / x, page_size, x] with x of 16 bytes, V [pages,
// kv_heads, head_dim, page_size]) lie in shared memory.
//
// Keys: pieces of 8 tokens x 16 bytes, 128 bytes in a row, are core matrices of wgmma as they stand in the cache: no swizzle.
//
//     byte (key t, 16 bytes c of its dims) = (t / 8 * chunks + c) * 128 + t % 8 * 16
//
// Values of 16 bits: rows of 16 tokens of a dim, 32 bytes, swizzled by 32 bytes. Tokens are innermost, which wgmma takes as an
// operand along K that is not transposed. Codes: rows of 16 tokens, 16 bytes, no swizzle.
//
//     byte (tokens t / 16, dim d) = (t / 16 * head_dim + d) * 16 * element_bytes
//
// Rows of 32 bytes are copied at 86 % of the rate of memory, those of 16 at 48 % (H200, bench/results/h200-tma-rows.txt); codes
// of pages of 16, which have no gap between rows, are copied as rows of 128 bytes.
#pragma once

#include <cstdint>

namespace quire::cuda::sm90 {

inline constexpr int kPackedKeys = 8;     ///< tokens of a core matrix
inline constexpr int kPackedValues = 16;  ///< tokens of a row of values

/// Of a tile of keys.
template <int kDim, int kElementBytes>
struct PackedKeys {
  static constexpr int kChunks = kDim * kElementBytes / 16;
  static constexpr int kChunkBytes = kPackedKeys * 16;       ///< from 16 bytes of dims to the next
  static constexpr int kGroupBytes = kChunks * kChunkBytes;  ///< from 8 tokens to the next
  __device__ static int chunk(int key, int chunk) {
    return key / kPackedKeys * kGroupBytes + chunk * kChunkBytes + key % kPackedKeys * 16;
  }
};

/// Of a tile of values.
template <int kDim, int kElementBytes>
struct PackedValues {
  static constexpr int kRowBytes = kPackedValues * kElementBytes;
  static constexpr int kGroupBytes = kDim * kRowBytes;  ///< from 16 tokens to the next
  /// An element.
  __device__ static int element(int key, int dim) {
    const int token = key % kPackedValues;
    if constexpr (kElementBytes == 1) return key / kPackedValues * kGroupBytes + dim * kRowBytes + token;
    return key / kPackedValues * kGroupBytes + dim * kRowBytes + (token / 8 ^ dim / 4 % 2) * 16 + token % 8 * 2;
  }
};

}  // namespace quire::cuda::sm90
