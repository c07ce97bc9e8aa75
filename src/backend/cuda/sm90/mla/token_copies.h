// SPDX-License-Identifier: Apache-2.0
// Copies of a tile of keys that are no neighbours, as in pages of one token: by the threads of a warp, 16 bytes each (cp.async).
//
// A tensor copy for each key and 64 dims does the same, and takes longer (H100, 2026-11-26, lists of 2048 slots, 64 rows, 128
// heads: 336 us for 202). What threads write is of another proxy than what wgmma reads: consumers fence before they multiply.
#pragma once

#include "backend/cuda/sm90/mla/memory.h"

namespace quire::cuda::sm90::mla {

constexpr int kWarp = 32;

/// Arrives once the copies that this thread began are there (PTX ISA, "cp.async.mbarrier.arrive"). The barrier counts each
/// thread.
__device__ inline void arrive_with_copies(hopper::Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ptx::shared_address(barrier)) : "memory");
}

/// `kCopied` boxes of 64 dims from `box` on, of all keys of a tile, swizzled by their rows of 128 bytes. rows[run] of lane i is
/// the first byte of key 32 run + i, or null.
template <int kCopied>
__device__ inline void copy_keys(Tile& tile, const Byte* const (&rows)[kKeys / kWarp], int box) {
  constexpr int kChunks = kCopied * kRowBytes / 16, kAtOnce = kWarp / kChunks;  // 16-byte chunks of a key, keys at once
  const int lane = static_cast<int>(threadIdx.x) % kWarp, chunk = lane % kChunks;
#pragma unroll
  for (int run = 0; run < kKeys / kWarp; ++run) {
    const auto mine = reinterpret_cast<unsigned long long>(rows[run]);
#pragma unroll 2
    for (int first = 0; first < kWarp; first += kAtOnce) {
      const int of = first + lane / kChunks, key = run * kWarp + of;
      const auto row = reinterpret_cast<const Byte*>(__shfl_sync(~0u, mine, of));  // NOLINT(performance-no-int-to-ptr)
      Byte* const to = tile.pieces[key / kPieceKeys][box + chunk / 8] + key % kPieceKeys * kRowBytes;
      if (row != nullptr) ptx::copy_async_16(to + (chunk % 8 ^ key % kPieceKeys) * 16, row + box * kRowBytes + chunk * 16, 16);
    }
  }
}

}  // namespace quire::cuda::sm90::mla
