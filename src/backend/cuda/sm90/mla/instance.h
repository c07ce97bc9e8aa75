// SPDX-License-Identifier: Apache-2.0
// The kernels of MLA decode as host code sees them.
#pragma once

#include "backend/cuda/sm90/instance.h"

namespace quire::cuda::sm90 {

// Score rows of a tile, and dims of a latent row and of its values.
constexpr int kMlaRows = 64, kMlaKeyDim = 576, kMlaValueDim = 512;

/// mla/instances.cu: the items of args.work; of `maps`, those of keys. args.head_dim is that of the values.
cudaError_t launch_mla(const gpu::AttendArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream);

}  // namespace quire::cuda::sm90
