// SPDX-License-Identifier: Apache-2.0
// Arguments of cached_lens.h.
#pragma once

#include <cstdint>

#include "semantics/page_walk.h"

namespace quire::gpu {

constexpr int kCachedLensThreads = 128;

/// derive_cached_lens().
struct CachedLensArgs {
  std::int64_t num_reqs = 0;
  semantics::IndexView query_start_loc;  ///< [num_reqs + 1]
  semantics::IndexView seq_lens;         ///< [num_reqs]
  void* cached_lens = nullptr;           ///< [num_reqs]
  std::int64_t stride = 1;
  bool wide = false;  ///< i64
};

inline std::int64_t cached_lens_blocks(const CachedLensArgs& a) {
  constexpr std::int64_t kMost = 128;  // blocks stride over more requests
  const std::int64_t blocks = (a.num_reqs + kCachedLensThreads - 1) / kCachedLensThreads;
  return blocks < kMost ? blocks : kMost;
}

}  // namespace quire::gpu
