// SPDX-License-Identifier: Apache-2.0
// How large the pieces are that a CPU kernel works on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace quire::plan_detail {

struct TileSizes {
  std::int64_t score_rows;  ///< score rows (query rows x heads of the group) per tile
  std::int64_t tile_kv;     ///< keys per tile
  std::int64_t split_keys;  ///< a multiple of tile_kv
  /// Items of up to this many score rows take the kernel's path for few rows, whose sums have another order.
  std::int64_t direct_rows;
};

/// Score rows: as many as fill half of L2 with their queries, accumulators and totals, beside the K and V panels of a tile. More
/// rows share the packing of a tile; 256 leave little of it.
inline std::int64_t score_rows(std::int64_t head_dim, std::int64_t l2_bytes, std::int64_t tile_kv) {
  const std::int64_t dim = (head_dim + 15) / 16 * 16;
  const std::int64_t panels = 2 * tile_kv * dim, row = 3 * dim;
  const std::int64_t fit = (l2_bytes / 2 / static_cast<std::int64_t>(sizeof(float)) - panels) / row;
  return std::clamp<std::int64_t>(fit / 16 * 16, 64, 256);
}

inline TileSizes tile_sizes(std::string_view kernel, std::int64_t head_dim, std::int64_t l2_bytes) {
  constexpr std::int64_t kTileKv = 128, kSplitKeys = 1024;
  // Few rows: on AMX three parts of five rows fill one tile of 16; elsewhere up to here reading the cache in place wins, as value
  // vectors are converted once per 4 rows instead of once.
  const std::int64_t direct_rows = kernel == "cpu_amx" ? 5 : 8;
  return {score_rows(head_dim, l2_bytes, kTileKv), kTileKv, kSplitKeys, direct_rows};
}

}  // namespace quire::plan_detail
