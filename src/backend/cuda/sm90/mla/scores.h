// SPDX-License-Identifier: Apache-2.0
// Tiles of MLA decode that not all rows see: scores of -inf, and values of zero where no row sees a key.
#pragma once

#include "backend/cuda/sm90/mla/products.h"

namespace quire::cuda::sm90::mla {

/// The thread's rows of a warpgroup are 16 warp + lane / 4 + {0, 8}; its columns 8 i + 2 (lane % 4) + {0, 1}.
struct Lane {
  __device__ static int row() { return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 4 * 2; }
};

/// A bit for each of a thread's columns 0, 1, 8, 9, 16, ... (counted from its first) that is below `end`.
__device__ inline std::uint32_t columns_below(int end) {
  const int at = min(max(end, 0), kKeys), count = at / 8 * 2 + min(at % 8, 2);
  return static_cast<std::uint32_t>((std::uint64_t{1} << count) - 1);
}

/// -inf for keys of tile `n` that a row does not see.
template <int kCount>
__device__ inline void hide_unseen(float (&s)[kCount], const gpu::AttendArgs& a, const tile::Item& item, const KeySpan& span,
                                   int n) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = min(item.slice.row_begin + Lane::row() + 8 * h, item.slice.row_end - 1);
    const semantics::KeyRange seen = tile::keys_of_row(a, item.lengths, row);
    const int first = n * kKeys + Lane::column();
    const int begin = max(static_cast<int>(seen.begin), span.seen_begin), end = min(static_cast<int>(seen.end), span.seen_end);
    const std::uint32_t hidden = ~columns_below(end - first) | columns_below(begin - first);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i)
      if (hidden >> i & 1) s[i / 2 * 4 + 2 * h + i % 2] = -INFINITY;
  }
}

/// Zeros for the values of tile `n` that no row sees, by the warpgroup whose slot it is: 0 times what lay there could be NaN.
/// Both warpgroups read them afterwards.
__device__ inline void clear_unseen(Tile& tile, const KeySpan& span, int n, int group) {
  for (int i = static_cast<int>(threadIdx.x) % 128; i < kKeys * 8; i += 128) {
    const int key = i / 8, position = n * kKeys + key;
    if (position >= span.seen_begin && position < span.seen_end) continue;
#pragma unroll
    for (int box = 0; box < kValueBoxes; ++box)
      *reinterpret_cast<uint4*>(tile.pieces[key / 8][box] + key % 8 * kRowBytes + i % 8 * 16) = uint4{};
  }
  hopper::fence_shared();
  hopper::sync_at(3 + group, 128);
}

}  // namespace quire::cuda::sm90::mla
