// SPDX-License-Identifier: Apache-2.0
// Sizes of cluster decode that host code sees, too.
#pragma once

namespace quire::cuda::sm90::cluster {

constexpr int kRows = 8;        ///< score rows for which a tile has room: those of one KV head's group
constexpr int kUnitKeys = 16;   ///< keys that a warp folds at a time
constexpr int kMostBlocks = 8;  ///< of a cluster: the largest cluster that every device with clusters can hold

}  // namespace quire::cuda::sm90::cluster
