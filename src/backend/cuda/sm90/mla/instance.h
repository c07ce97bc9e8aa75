// SPDX-License-Identifier: Apache-2.0
// The kernels of MLA decode as host code sees them.
#pragma once

#include "backend/cuda/sm90/instance.h"

namespace quire::cuda::sm90 {

// Score rows of a tile, and dims of a latent row and of its values.
constexpr int kMlaRows = 64, kMlaKeyDim = 576, kMlaValueDim = 512;

/// Boxes of a latent cache: 64 dims x box_tokens tokens of a page, swizzled by their rows of 128 bytes.
struct LatentMap {
  CUtensorMap keys;
  std::int32_t box_tokens = 0;  ///< the greatest common divisor of page_size and 64
  std::int32_t box_shift = 0;   ///< its logarithm
};

/// mla/instances.cu: the items of args.work. args.head_dim is that of the values.
cudaError_t launch_mla(const gpu::AttendArgs& args, const LatentMap& map, int blocks, cudaStream_t stream);

}  // namespace quire::cuda::sm90
