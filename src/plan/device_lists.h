// GPU plans: how much room the device's own planning needs, whatever lengths it finds.
#pragma once

#include <cstdint>

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// Tile heights of cuda_mma's two lists, src/backend/cuda/mma/.
inline constexpr std::int64_t kShortTileRows = 8;
inline constexpr std::int64_t kTallTileRows = 64;
inline constexpr std::int64_t kMmaTileKeys = 64;
/// Of cuda_sm90's wide decode tiles, as its registers allow; the narrow ones have kShortTileRows.
constexpr std::int64_t sm90_wide_rows(std::int64_t head_dim) { return head_dim == 256 ? 16 : 32; }
/// Its blocks of a multiprocessor, which src/backend/cuda/sm90/ makes room for: as many as keep up with memory.
constexpr std::int64_t sm90_decode_blocks(std::int64_t head_dim, std::int64_t cache_itemsize, std::int64_t tile_rows) {
  if (tile_rows != kShortTileRows || head_dim > 128) return 1;
  return cache_itemsize == 1 ? 3 : 2;
}
/// Requests whose tiles it counts; with more, cuda_mma serves decode rows.
inline constexpr std::int64_t kSm90MostReqs = 1024;
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
