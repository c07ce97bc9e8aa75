// SPDX-License-Identifier: Apache-2.0
// What the portable attention kernel and the look at contents are given beyond AttendArgs: where codes of 4 bits and the scales
// of their blocks lie. Kernels for tensor cores take AttendArgs alone.
#pragma once

#include "backend/gpu/args.h"
#include "semantics/block_scale.h"

namespace quire::gpu {

/// Cached rows of 4-bit codes. Codes and scales have strides of their own, so that a row is found by its page, token and head.
struct BlockRows {
  semantics::KvStrides strides;   ///< in codes
  semantics::BlockScales scales;  ///< absent where codes have 8 bits or more
};

struct GenericArgs : AttendArgs {
  /// Where a cache has block scales, the strides of cache_k or cache_v yield the page of a row, and BlockRows has those of codes.
  BlockRows k_blocks, v_blocks;
};

/// Makes a source of 4-bit codes one of page numbers.
inline void number_pages(RowSource& source, const BlockRows& rows) {
  if (rows.scales.present()) source.strides = {1, 0, 0, 0, 1, rows.strides.x};
}

}  // namespace quire::gpu
