// SPDX-License-Identifier: Apache-2.0
// The kernels of MLA decode as host code sees them.
#pragma once

#include "backend/cuda/sm90/instance.h"

namespace quire::cuda::sm90 {

// Score rows of a tile, dims of a latent row and of its values, and keys of a copy.
constexpr int kMlaRows = 64, kMlaKeyDim = 576, kMlaValueDim = 512, kMlaPieceKeys = 8;

/// Copies of a latent cache: 8 tokens of a page, of each half of the values or the 64 dims behind them; a piece of 8 tokens x 64
/// dims after the other, swizzled by their rows of 128 bytes.
struct LatentMaps {
  CUtensorMap half, rest;
  int copied_tokens;  ///< 8, or 1 where pages do not hold whole eights: then threads copy, and there are no maps
};

/// mla/instances.cu: the items of args.work. args.head_dim is that of the values.
cudaError_t launch_mla(const gpu::AttendArgs& args, const LatentMaps& maps, int blocks, cudaStream_t stream);

}  // namespace quire::cuda::sm90
