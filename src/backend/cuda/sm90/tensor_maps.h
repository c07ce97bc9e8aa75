// SPDX-License-Identifier: Apache-2.0
// Tensor maps: what the Hopper kernels' tensor copies (TMA) take of the caller's tensors, and whether they can.
#pragma once

#include "backend/cuda/sm90/mla/instance.h"

namespace quire::cuda::sm90 {

/// The caches are packed: dims of a key lie in chunks of 16 bytes, tokens of a value side by side.
bool is_packed(const gpu::AttendArgs& args);
/// The caches can be read by boxes.
bool takes_boxes(const gpu::AttendArgs& args);
/// Whether there are rows, and all that prefill reads can be read by boxes. (The driver refuses a tensor map of no rows.)
bool takes_prefill_boxes(const gpu::AttendArgs& args);

/// Keys of a latent cache can be read by boxes, and query rows 16 bytes at a time (mla/).
bool takes_latent_boxes(const gpu::AttendArgs& args);

/// False if the driver refuses what the functions above accepted.
bool encode(CacheMaps& maps, const gpu::AttendArgs& args);
bool encode(PrefillMaps& maps, const gpu::AttendArgs& args);
bool encode(LatentMaps& maps, const gpu::AttendArgs& args);

}  // namespace quire::cuda::sm90
