// SPDX-License-Identifier: Apache-2.0
// cuda_mma: tiles of src/backend/cuda/mma/, and the problems that it has instances for.
#pragma once

#include "plan/device_lists.h"

namespace quire::plan_detail {

/// Two blocks of up to 112 KiB of shared memory and 255 registers a thread fill an SM.
inline constexpr ShortAndTall kMmaTiles = {.short_rows = 8, .tall_rows = 64, .tile_keys = 64, .blocks_per_unit = 2};
/// Tiles of prefill, whose weights are rounded, and the blocks of them that fill an SM with eight warps: a warp has 32 rows, or
/// 16 where it has no registers for more (head_dim 256) or converts keys and values.
inline constexpr std::int64_t kMmaPrefillRows = 128;
constexpr std::int64_t mma_prefill_blocks(std::int64_t head_dim, bool fp8) { return head_dim == 256 || fp8 ? 1 : 2; }

/// Whether cuda_mma takes what cuda_sm90 does not, of that row's types: it has no instance for an 8-bit query.
inline bool has_mma_instance(const Problem& p) {
  return !is_fp8(p.q_dtype) && p.has_equal_dims() && p.head_dim <= (is_fp8(p.kv_dtype) ? 128 : 256);
}

}  // namespace quire::plan_detail
