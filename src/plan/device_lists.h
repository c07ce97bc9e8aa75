// SPDX-License-Identifier: Apache-2.0
// GPU plans: how much room the device's own planning needs, whatever lengths it finds.
#pragma once

#include <cstdint>

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// Tile heights of cuda_mma's two lists, src/backend/cuda/mma/.
inline constexpr std::int64_t kShortTileRows = 8;
inline constexpr std::int64_t kTallTileRows = 64;
inline constexpr std::int64_t kMmaTileKeys = 64;
/// Of cuda_sm90's wide decode tiles, for each of two warpgroups, as registers allow; the narrow ones have kShortTileRows.
constexpr std::int64_t sm90_wide_rows(std::int64_t head_dim) { return head_dim == 256 ? 16 : 32; }
inline constexpr std::int64_t kSm90WideGroups = 2;
/// Score rows of a request that it takes beside a prefill kernel that rounds weights, which is faster from there on; and, in
/// slices of tiles, where there is none.
inline constexpr std::int64_t kSm90RowsBesidePrefill = 32;
inline constexpr std::int64_t kSm90SlicedRows = 128;
/// Keys of a part of its batch_invariant plans: a part costs some 4 us beside its tiles, and a request of 8k with 8 KV heads is
/// to be worked on by more than a few blocks.
inline constexpr std::int64_t kSm90SplitKeys = 2048;
/// Key tiles in a share of its wide tiles, at least.
inline constexpr std::int64_t kSm90WideShare = 8;
/// A share of its narrow tiles may grow by a part in so many to be a whole number of segments, or of a segment's parts.
inline constexpr std::int64_t kSm90WholeShare = 34;
/// Of its narrow tiles: how long a tile takes, by how long a merge takes for a part and four rows of 128 dims (1500 and 80 cycles
/// on an H200), and parts of a segment (request and KV head) that there may be in any case.
inline constexpr double kSm90TileByPart = 19;
inline constexpr std::int64_t kSm90ManyParts = 32;
/// Whether a list of a cuda_sm90 plan is for its decode kernel.
inline bool is_sm90_decode(const DeviceList& list) { return list.min_rows == 0 && !list.rounded_weights; }
/// Its blocks of a multiprocessor, which src/backend/cuda/sm90/ makes room for: as many as keep up with memory.
constexpr std::int64_t sm90_decode_blocks(std::int64_t head_dim, std::int64_t cache_itemsize, std::int64_t tile_rows) {
  if (tile_rows != kShortTileRows || head_dim > 128) return 1;
  return cache_itemsize == 1 ? 4 : 2;
}
/// Whether cuda_mma takes what cuda_sm90 does not, of that row's types: it has no instance for an 8-bit query.
inline bool has_mma_instance(DType query, DType cache, std::int64_t head_dim) {
  return !is_fp8(query) && !(is_fp8(cache) && head_dim == 256);
}
/// Of cuda_generic's tiles.
inline constexpr std::int64_t kGenericTileRows = 16;
inline constexpr std::int64_t kGenericTileKeys = 64;
/// Of cuda_sm90's prefill, src/backend/cuda/sm90/instance.h: score rows that fit a tile of a pair of blocks, and keys.
inline constexpr std::int64_t kPrefillRows = 256;
constexpr std::int64_t prefill_tile_keys(std::int64_t head_dim) { return head_dim == 256 ? 64 : 128; }
/// Of hip_matrix, src/backend/gpu/matrix/sizes.h; its tall tiles have as many rows.
inline constexpr std::int64_t kMatrixShortRows = 16;

/// The bounds of a problem whose lengths are known.
Bounds bounds_of(const Problem& problem);

/// Fills plan.lists from plan.bounds; fails if a count would not fit the device's 32-bit numbers.
Status size_lists(Plan& plan);

}  // namespace quire::plan_detail
