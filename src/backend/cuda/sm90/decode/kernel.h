// SPDX-License-Identifier: Apache-2.0
// Decode on Hopper: slices of score rows (query rows x group: packed GQA) of one request and KV head against its keys, 64 at a
// time.
//
// A consumer warpgroup multiplies by wgmma with keys and dims as the 64 rows of the matrix unit and score rows as its columns
// ("swap-AB"), so that 8 score rows fill it:
//
//     S^T [64 keys x kRows]       = K [64 x d] Q^T [d x kRows]
//     O^T [64 dims x 2 kRows] (x2) += V^T [64 x 64 keys] P^T [64 keys x 2 kRows]
//
// The first half of the columns of P^T holds the high parts of the weights and the second half the low parts. plain_tiles.h,
// fp8_tiles.h and packed_tiles.h say where K and V^T come from.
//
// The scheduler deals keys to blocks by Stream-K (scheduler.h). Keys of a visible page that no score row sees are copied and not
// used; no other memory of the cache is read.
#pragma once

#include "backend/cuda/sm90/decode/consumer.h"
#include "backend/cuda/sm90/decode/producer.h"
#include "backend/cuda/sm90/launch_order.h"
#include "backend/gpu/break_call.h"

namespace quire::cuda::sm90::decode {

template <typename T, typename Memory>
__global__ void __launch_bounds__(Memory::kThreads, Memory::kBlocks)
    attend_decode(const __grid_constant__ HopperArgs args, const __grid_constant__ CacheMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const gpu::AttendArgs& a = args.common;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  if (threadIdx.x == 0) {  // a consumer thread does this: the first copy waits for the producers
    hopper::prefetch_map(&maps.k), hopper::prefetch_map(&maps.v);
    Memory::init_barriers(shared);
  }
  const int blocks = begin_decode_turn<Memory::kBlocks>(args);
  if (static_cast<int>(blockIdx.x) >= blocks) return end_turn(args);
  const Iterations<Memory::kSlices> iterations(a, blocks);
  const int warp = static_cast<int>(threadIdx.x) / 32 - Memory::kConsumerThreads / 32;
  const bool few = a.num_reqs <= kFewRequests, produces = warp >= 0 && warp < Memory::kProducerWarps;
  Counted counted{};
  if (!few || produces) counted = count_iterations<Memory::kThreads>(args, iterations, shared.work, few, warp);
  if (few) __syncthreads();  // mbarriers become visible; otherwise the barrier in count_iterations() does that
  if (warp < 0) {
    if constexpr (Memory::kMoveRegisters) hopper::take_registers<Memory::kConsumerRegisters>();
    gpu::confirm_if_first(a);
    Consumer<T, Memory>{args, shared}.run();
  } else {
    if constexpr (Memory::kMoveRegisters) hopper::keep_registers<Memory::kProducerRegisters>();
    constexpr auto shares = Memory::kShares;
    if (produces) Producer<Memory>{args, maps, shared, warp}.run(pieces_of(a, iterations, counted, blocks, shares));
    let_trailing_start(args);
    end_turn(args);
    // Prepare reports broken lengths, too. Too many parts are found here alone.
    if (counted.all == kUnsound && threadIdx.x == Memory::kConsumerThreads) gpu::break_call(a);
  }
#endif
}

}  // namespace quire::cuda::sm90::decode
