// SPDX-License-Identifier: Apache-2.0
// Absorbed decode of multi-head latent attention (MLA; DeepSeek-V2, 2024, arXiv:2405.04434) on Hopper: tiles of 64 score rows
// (query rows x group: packed GQA) of one request against tiles of 64 keys of 576 dims, whose first 512 dims are the values.
//
// Two producer warps copy tiles by the tensor copy engine (TMA), one draws items; two warpgroups multiply by wgmma and share an
// output (mainloop.h). Weights are rounded to the query's type (numerics.md, "Rounded weights").
#pragma once

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/mla/epilogue.h"
#include "backend/cuda/sm90/mla/mainloop.h"
#include "backend/cuda/sm90/mla/producer.h"
#include "backend/cuda/sm90/mla/query.h"

namespace quire::cuda::sm90::mla {

template <typename T, int kGroup>
__device__ __forceinline__ void consume(const gpu::AttendArgs& a, const LatentMaps& maps, Shared& shared) {
  Phases phases;
  Items items{a, shared};
  while (items.advance()) {
    const tile::Item& item = items.item();
    load_query(a, item, shared);
    typename Online<T>::State state;
    Mainloop<T, kGroup>{a, maps, shared}.fold(state, item, key_span(a, item), phases);
    Epilogue<T, kGroup>{a, shared}.close(state, item);
  }
}

/// a.head_dim is that of the values: what is common to all kernels knows one length of a row of results.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    attend_mla(const __grid_constant__ gpu::AttendArgs a, const __grid_constant__ LatentMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    shared.zero = 0.0f;
    init_barriers(shared, maps.copied_tokens == 1 ? kWarp : 1);
    hopper::fence_barrier_init();
  }
  __syncthreads();
  wait_for_dependencies();
  gpu::confirm_if_first(a);
  const int group = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  if (group == kGroups) {
    hopper::keep_registers<kProducerRegisters>();
    if (warp < kGroups)
      Producer{a, maps, shared, warp}.run();
    else if (warp == kDrawingWarp)
      Items{a, shared}.draw_all();
    else
      for (Items items{a, shared}; items.advance();) {
      }
  } else if (group == 0) {
    hopper::take_registers<kConsumerRegisters>();
    consume<T, 0>(a, maps, shared);
  } else {
    hopper::take_registers<kConsumerRegisters>();
    consume<T, 1>(a, maps, shared);
  }
#endif
}

}  // namespace quire::cuda::sm90::mla
