// SPDX-License-Identifier: Apache-2.0
// Prefill on Hopper: tiles of 128 score rows (query rows x group: packed GQA) of one request and KV head against tiles of 128
// keys (64 for head_dim 256 and 512).
//
// Producer warps draw items and copy by the tensor copy engine (TMA), boxes of up to 64 tokens; transform warps convert fp8 codes
// (transform.h); two consumer warpgroups of 64 rows each multiply by wgmma (products.h, mainloop.h). Two blocks share tiles of
// keys: each copies half of the boxes to both, because reads of the L2 cache by all blocks are near its limit. At head_dim 512
// the two blocks have the same rows, share keys alone and have half of V each: both compute the rows' scores, because registers
// hold 256 dims of 128 rows. Weights are rounded to the query's type (numerics.md, "Rounded weights"). Rows are written by tensor
// copies (epilogue.h).
#pragma once

#include <type_traits>

#include "backend/cuda/sm90/launch_order.h"
#include "backend/cuda/sm90/prefill/code_producer.h"
#include "backend/cuda/sm90/prefill/consumer.h"
#include "backend/cuda/sm90/prefill/producer.h"
#include "backend/cuda/sm90/prefill/transform.h"

namespace quire::cuda::sm90::prefill {

template <typename T, typename Memory>
__global__ void __launch_bounds__(Memory::kThreads, 1)
    attend_prefill(const __grid_constant__ HopperArgs args, const __grid_constant__ PrefillMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const gpu::AttendArgs& a = args.common;
  using Produce = std::conditional_t<Memory::kCodes, CodeProducer<Memory>, Producer<Memory>>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  if (trails_nothing(args)) return end_turn(args);
  if (threadIdx.x == 0) {
    shared.zero = 0.0f;
    shared.group_inverse = (65536 + a.group - 1) / a.group;
    Memory::init_barriers(shared);
    hopper::fence_barrier_init();
  }
  hopper::sync_cluster();
  if (!begin_turn(args)) return;
  // No request is for this list, which a plan without bounds has for long requests that may come.
  if (args.turn == Turn::alone && *static_cast<const volatile std::int32_t*>(a.work.num_slices) == 0) return;
  const int rank = hopper::rank_in_cluster();
  if (Memory::kFour && threadIdx.x >= Memory::kFirstTransformThread) {
    hopper::keep_registers<Memory::kTransformRegisters>();
    if constexpr (Memory::kFour) Transform<T, Memory>{{args, maps, shared, rank}}.run();
  } else if (threadIdx.x >= Memory::kConsumerThreads) {
    hopper::keep_registers<Memory::kProducerRegisters>();
    if (!Memory::kFour && Memory::kCodes && threadIdx.x >= Memory::kFirstTransformThread) {
      if constexpr (!Memory::kFour && Memory::kCodes) Transform<T, Memory>{{args, maps, shared, rank}}.run();
    } else {
      Produce{{args, maps, shared, rank}}.run();
    }
  } else {
    hopper::take_registers<Memory::kConsumerRegisters>();
    Consumer<T, Memory>{{args, maps, shared, rank}}.run();
  }
  end_turn(args);
  hopper::sync_cluster();  // the other block copies into this one's memory and arrives at its barriers
#endif
}

}  // namespace quire::cuda::sm90::prefill
