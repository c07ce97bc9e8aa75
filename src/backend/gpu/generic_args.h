// SPDX-License-Identifier: Apache-2.0
// Arguments of the portable attention kernel and of check_contents(): AttendArgs, and the places of 4-bit codes and of the scales
// of their blocks. Kernels for tensor cores take AttendArgs alone.
#pragma once

#include "backend/gpu/args.h"
#include "semantics/block_scale.h"

namespace quire::gpu {

/// Cached rows of 4-bit codes. Codes and scales have strides of their own, so that a row is found by its page, token and head.
struct BlockRows {
  semantics::KvStrides strides;   ///< strides in codes
  semantics::BlockScales scales;  ///< absent where codes have 8 bits or more
};

struct GenericArgs : AttendArgs {
  /// Places of 4-bit codes. The strides of cache_k or cache_v then yield the page of a row, and those of BlockRows its codes.
  BlockRows k_blocks, v_blocks;
};

/// Makes a source of 4-bit codes one of page numbers.
inline void number_pages(RowSource& source, const BlockRows& rows) {
  if (rows.scales.present()) source.strides = {1, 0, 0, 0, 1, rows.strides.x};
}

}  // namespace quire::gpu
