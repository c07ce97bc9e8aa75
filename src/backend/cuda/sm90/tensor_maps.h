// SPDX-License-Identifier: Apache-2.0
// Tensor maps: what the Hopper kernels' tensor copies (TMA) take of the caller's tensors, and whether they can.
#pragma once

#include "backend/cuda/sm90/mla/instance.h"

namespace quire::cuda::sm90 {

/// The caches are packed: dims of a key lie in chunks of 16 bytes, tokens of a value side by side.
bool is_packed(const gpu::AttendArgs& args);
/// TMA boxes can read the caches.
bool takes_boxes(const gpu::AttendArgs& args);
/// TMA boxes can read query, key and value, too (prefill/). False without rows: the driver refuses a tensor map of no rows.
bool takes_prefill_boxes(const gpu::AttendArgs& args);

/// TMA boxes can read keys of a latent cache, and 16-byte loads its query rows (mla/).
bool takes_latent_boxes(const gpu::AttendArgs& args);

/// False if the driver refuses what the functions above accepted.
bool encode(CacheMaps& maps, const gpu::AttendArgs& args);
bool encode(PrefillMaps& maps, const gpu::AttendArgs& args);
bool encode(LatentMaps& maps, const gpu::AttendArgs& args);

}  // namespace quire::cuda::sm90
