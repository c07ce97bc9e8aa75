// SPDX-License-Identifier: Apache-2.0
// cuda_mma: tiles of src/backend/cuda/mma/, and the problems that it has instances for.
#pragma once

#include "plan/device_lists.h"

namespace quire::plan_detail {

/// Two blocks of up to 112 KiB of shared memory and 255 registers a thread fill an SM.
inline constexpr ShortAndTall kMmaTiles = {.short_rows = 8, .tall_rows = 64, .tile_keys = 64, .blocks_per_unit = 2};

/// Whether cuda_mma takes what cuda_sm90 does not, of that row's types: it has no instance for an 8-bit query.
inline bool has_mma_instance(const Problem& p) {
  return !is_fp8(p.q_dtype) && p.has_equal_dims() && p.head_dim <= (is_fp8(p.kv_dtype) ? 128 : 256);
}

}  // namespace quire::plan_detail
