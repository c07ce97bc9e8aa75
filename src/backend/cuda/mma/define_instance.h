// SPDX-License-Identifier: Apache-2.0
// Included by the instance files alone.
#pragma once

#include "backend/cuda/mma/attend_short.h"
#include "backend/cuda/mma/attend_tall.h"
#include "backend/cuda/mma/instance.h"
#include "plan/kernels/cuda_mma.h"

namespace quire::cuda::mma {

template <typename T, int kDim, int kCacheBytes, template <int> typename Source = TileSource>
struct Launches {
  template <typename Body>
  static cudaError_t start(void (*kernel)(gpu::AttendArgs, Access), const gpu::AttendArgs& args, const Launch& launch) {
    constexpr std::size_t kShared = sizeof(typename Body::Shared);
    const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
    if (set != cudaSuccess) return set;
    kernel<<<launch.blocks, Body::kThreads, kShared, launch.stream>>>(args, launch.access);
    return cudaGetLastError();
  }
  /// The plan's number for the shared memory of a body.
  template <typename Body, plan_detail::Role kRole>
  static constexpr bool kHasPlannedRoom =
      sizeof(typename Body::Shared) ==
      plan_detail::mma_shared_bytes(kRole, kDim, kCacheBytes == 1,
                                    kRole == plan_detail::Role::short_rows ? plan_detail::kMmaTiles.tile_keys : Body::kKeys);

  static cudaError_t attend_short(const gpu::AttendArgs& args, const Launch& launch) {
    using Body = Short<T, kDim, kCacheBytes, Source>;
    static_assert(kHasPlannedRoom<Body, plan_detail::Role::short_rows>);
    return start<Body>(mma::attend_short<T, kDim, kCacheBytes, Source>, args, launch);
  }
  template <Weights kWeights, int kKeys = plan_detail::kMmaTiles.tile_keys>
  static cudaError_t attend_tall(const gpu::AttendArgs& args, const Launch& launch) {
    using Body = Tall<T, kDim, kCacheBytes, Source, kWeights, kKeys>;
    using plan_detail::Role;
    constexpr bool kRounded = kWeights == Weights::rounded;
    static_assert(Body::kRows == (kRounded ? plan_detail::kMmaPrefillRows : plan_detail::kMmaTiles.tall_rows));
    static_assert(Body::kBlocks ==
                  (kRounded ? plan_detail::mma_prefill_blocks(kDim, kCacheBytes == 1) : plan_detail::kMmaTiles.blocks_per_unit));
    static_assert(kHasPlannedRoom < Body, kRounded ? Role::prefill : Role::tall_rows >);
    return start<Body>(mma::attend_tall<Body>, args, launch);
  }
  static constexpr Instance all() {
    Instance instance{attend_short, attend_tall<Weights::exact>, attend_tall<Weights::rounded>, nullptr};
    if constexpr (kDim == 256) instance.attend_few_keys = attend_tall<Weights::exact, plan_detail::kMmaFewKeys>;
    return instance;
  }
  static constexpr Instance kAll = all();
};

}  // namespace quire::cuda::mma
