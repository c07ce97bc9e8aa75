// SPDX-License-Identifier: Apache-2.0
// derive_cached_lens(): what a step's lengths say of the cache, where requests of one row read it alone and longer ones bring
// their rows. One launch in place of the four that an array library needs.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/cached_lens_args.h"

namespace quire::gpu {

/// Derives cached_lens, with any number of blocks of kCachedLensThreads threads. attend() refuses results of invalid lengths.
QUIRE_DEVICE void derive_cached_lens(const CachedLensArgs& a) {
  const std::int64_t step = static_cast<std::int64_t>(num_blocks()) * kCachedLensThreads;
  for (std::int64_t r = static_cast<std::int64_t>(block_index()) * kCachedLensThreads + thread_index(); r < a.num_reqs;
       r += step) {
    const std::int64_t seq_len = a.seq_lens[r], query_len = a.query_start_loc[r + 1] - a.query_start_loc[r];
    const std::int64_t cached = query_len == 1 ? seq_len : seq_len - query_len;
    if (a.wide)
      static_cast<std::int64_t*>(a.cached_lens)[r * a.stride] = cached;
    else
      static_cast<std::int32_t*>(a.cached_lens)[r * a.stride] = static_cast<std::int32_t>(cached);
  }
}

}  // namespace quire::gpu
