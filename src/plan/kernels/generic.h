// SPDX-License-Identifier: Apache-2.0
// cuda_generic and hip_generic: tiles of the portable kernel, src/backend/gpu/attend_generic.h.
#pragma once

#include <cstdint>

namespace quire::plan_detail {

struct GenericTuning {
  std::int64_t tile_rows = 16;  ///< score rows of a tile, at most
  std::int64_t tile_keys = 64;
  /// Thread blocks of an SM: as many blocks of 128 threads as keep their shared memory at 228 KiB / 4.
  std::int64_t blocks_per_unit = 4;
  std::int64_t items_per_block = 2;  ///< hide the difference between long and short items
};
inline constexpr GenericTuning kGeneric;

}  // namespace quire::plan_detail
