// SPDX-License-Identifier: Apache-2.0
// Included by the instance files alone.
#pragma once

#include "backend/cuda/mma/attend_short.h"
#include "backend/cuda/mma/attend_tall.h"
#include "backend/cuda/mma/instance.h"

namespace quire::cuda::mma {

template <typename T, int kDim, int kCacheBytes, template <int> typename Source = TileSource>
struct Launches {
  template <typename Kernel>
  static cudaError_t start(Kernel* kernel, std::size_t shared, const gpu::AttendArgs& args, const Launch& launch) {
    const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (set != cudaSuccess) return set;
    kernel<<<launch.blocks, 128, shared, launch.stream>>>(args, launch.whole_chunks);
    return cudaGetLastError();
  }
  static cudaError_t attend_short(const gpu::AttendArgs& args, const Launch& launch) {
    return start(mma::attend_short<T, kDim, kCacheBytes, Source>, sizeof(typename Short<T, kDim, kCacheBytes, Source>::Shared),
                 args, launch);
  }
  static cudaError_t attend_tall(const gpu::AttendArgs& args, const Launch& launch) {
    return start(mma::attend_tall<T, kDim, kCacheBytes, Source>, sizeof(typename Tall<T, kDim, kCacheBytes, Source>::Shared),
                 args, launch);
  }
};

}  // namespace quire::cuda::mma
