// SPDX-License-Identifier: Apache-2.0
// Launches of the instances of prefill/kernel.h: instances*.cu have one file for each kind of cache, for wide head_dims and for
// masks.
#pragma once

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/prefill/kernel.h"

namespace quire::cuda::sm90::prefill {

template <typename T, typename Memory>
cudaError_t start_prefill(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  if (args.common.work.tile_keys != Memory::kKeys) return cudaErrorInvalidValue;  // the plan's tiles are another instance's
  return launch_dependent(attend_prefill<T, Memory>, {blocks, Memory::kThreads, sizeof(typename Memory::Shared), kPair}, stream,
                          args, maps);
}

template <typename T, CacheKind kCache>
cudaError_t start_prefill(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  switch (args.common.head_dim) {
    case 64:
      if constexpr (kCache == CacheKind::rows) {
        using Tall = Memory<64, kCache, 64, false, true>;
        if (args.common.work.tile_keys == Tall::kKeys) return start_prefill<T, Tall>(args, maps, blocks, stream);
      }
      return start_prefill<T, Memory<64, kCache>>(args, maps, blocks, stream);
    case 128: return start_prefill<T, Memory<128, kCache>>(args, maps, blocks, stream);
    case 256: return start_prefill<T, Memory<256, kCache>>(args, maps, blocks, stream);
    default: return cudaErrorInvalidValue;
  }
}

/// start(type of the query in products). 8-bit queries become f16.
template <typename Start>
cudaError_t with_query_type(const HopperArgs& args, Start&& start) {
  return args.common.query.dtype == DType::bf16 ? start(tile::Bf16{}) : start(tile::F16{});
}

template <CacheKind kCache>
cudaError_t start_prefill(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  return with_query_type(args, [&]<typename T>(T) { return start_prefill<T, kCache>(args, maps, blocks, stream); });
}

}  // namespace quire::cuda::sm90::prefill
