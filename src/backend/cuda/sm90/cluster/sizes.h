// SPDX-License-Identifier: Apache-2.0
// Sizes of cluster decode that host code sees, too.
#pragma once

namespace quire::cuda::sm90::cluster {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kRows = 8;        ///< score rows for which a tile has room: those of one KV head's group
constexpr int kUnitKeys = 16;   ///< keys that a warp folds at a time
constexpr int kMostBlocks = 8;  ///< size of the largest cluster that every device with clusters can hold

/// Quads of the output (four dims) that one block finishes at a time: 32 bytes of 16-bit elements, as memory takes them.
constexpr int kPieceQuads = 4;

}  // namespace quire::cuda::sm90::cluster
