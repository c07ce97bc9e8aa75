// SPDX-License-Identifier: Apache-2.0
// Launches of the instances of prefill/kernel.h: instances*.cu have one file for each kind of cache.
#pragma once

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/prefill/kernel.h"

namespace quire::cuda::sm90::prefill {

template <typename T, typename Memory>
cudaError_t start_prefill(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  return launch_dependent(attend_prefill<T, Memory>, {blocks, Memory::kThreads, sizeof(typename Memory::Shared), kPair}, stream,
                          args, maps);
}

template <typename T, CacheKind kCache>
cudaError_t start_prefill(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  switch (args.common.head_dim) {
    case 64: return start_prefill<T, Memory<64, kCache>>(args, maps, blocks, stream);
    case 128: return start_prefill<T, Memory<128, kCache>>(args, maps, blocks, stream);
    case 256: return start_prefill<T, Memory<256, kCache>>(args, maps, blocks, stream);
    default: return cudaErrorInvalidValue;
  }
}

/// 8-bit queries become f16.
template <CacheKind kCache>
cudaError_t start_prefill(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  return args.common.query.dtype == DType::bf16 ? start_prefill<tile::Bf16, kCache>(args, maps, blocks, stream)
                                                : start_prefill<tile::F16, kCache>(args, maps, blocks, stream);
}

}  // namespace quire::cuda::sm90::prefill
