// The Hopper kernels as host code sees them.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/gpu/args.h"

namespace quire::cuda::sm90 {

using Byte = unsigned char;

constexpr int kTileKeys = 64;
constexpr int kMostReqs = 1024;  ///< whose tiles a block counts in shared memory

/// Boxes of the two caches: 64 dims of 16 bits or all dims of 8, x box_tokens tokens of one head and page, swizzled by their
/// width.
struct CacheMaps {
  CUtensorMap k, v;
  std::int32_t box_tokens = 0;  ///< min(page_size, 64)
};

/// decode.cu: the requests of args.work's rows, by `blocks` blocks.
cudaError_t launch_decode(const gpu::AttendArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream);

}  // namespace quire::cuda::sm90
