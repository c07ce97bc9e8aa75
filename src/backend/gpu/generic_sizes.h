// SPDX-License-Identifier: Apache-2.0
// attend_generic: the sizes that its launch and its parts share.
#pragma once

namespace quire::gpu {

constexpr int kGenericThreads = 256;
constexpr int kGenericBlocksPerUnit = 3;  ///< blocks per SM for launch bounds; more would spill on sm_90
constexpr int kGenericTileRows = 16;      ///< WorkList::tile_rows must be this
constexpr int kGenericTileKeys = 64;      ///< WorkList::tile_keys must be this
constexpr int kGenericSharedBytes = 48 * 1024;

constexpr int kDimBlock = 128;            ///< dims in shared memory at a time
constexpr int kDimPitch = kDimBlock + 4;  ///< eight rows apart is another bank for sixteen bytes
constexpr int kScorePitch = kGenericTileKeys + 4;
constexpr int kOutDims = 2 * kDimBlock;  ///< output dims that the block's registers hold; more are made in several passes

}  // namespace quire::gpu
