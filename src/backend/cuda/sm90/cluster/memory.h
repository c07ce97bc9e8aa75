// SPDX-License-Identifier: Apache-2.0
// Shared memory of a block of cluster decode.
#pragma once

#include <cstdint>

#include "backend/cuda/hopper/instructions.h"
#include "backend/cuda/sm90/cluster/sizes.h"
#include "backend/cuda/sm90/instance.h"

namespace quire::cuda::sm90::cluster {

/// Maximum (base 2) and sum of a row.
struct RowState {
  float max, sum;
};

/// Rows of keys, or of values, of a unit: chunks of 16 bytes, swizzled so that 8 rows' chunks are in all banks.
template <int kRowBytes>
struct UnitRows {
  static constexpr int kChunks = kRowBytes / 16;
  Byte bytes[kUnitKeys][kRowBytes];
  __device__ static int place(int row, int chunk) { return (chunk ^ (kChunks >= 8 ? row % 8 : row / 2 % kChunks)) * 16; }
  __device__ Byte* chunk(int row, int chunk) { return bytes[row] + place(row, chunk); }
  __device__ const Byte* chunk(int row, int chunk) const { return bytes[row] + place(row, chunk); }
};

/// kBytes: of an element of the cache.
template <int kDim_, int kBytes_>
struct Memory {
  static constexpr int kDim = kDim_, kBytes = kBytes_;
  static constexpr int kQuads = kDim / 4;  ///< groups of four dims in a row of the output
  using Rows = UnitRows<kDim * kBytes>;
  struct Unit {
    Rows keys, values;
  };
  /// 192 KiB an SM are on their way at a time, once a unit is folded: less leaves memory idle.
  static constexpr int kStages = 192 * 1024 / kWarps / sizeof(Unit);
  /// Units that a warp asks for before it has folded one. The reason is believed and was not measured apart: instructions are not
  /// in L2 when a call begins, and are fetched behind the keys that were asked for.
  /// Another number changes times alone.
  static constexpr int kFirst = kBytes == 1 ? 1 : kStages;
  /// A warp's memory: units, then its partial result. Four floats more than a row holds keep rows apart in the banks.
  union OfWarp {
    Unit units[kStages];
    float out[kRows][kDim + 4];
  };
  struct Shared {
    alignas(1024) OfWarp of_warp[kWarps];
    RowState states[kWarps][kRows];
    /// Partial results of the cluster's blocks, of this block's share of all quads.
    alignas(16) float4 received[kRows * kQuads + kMostBlocks * kPieceQuads];
    RowState received_states[kMostBlocks][kRows];
    hopper::Barrier all_received;
  };
};

}  // namespace quire::cuda::sm90::cluster
