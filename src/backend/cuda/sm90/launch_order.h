// SPDX-License-Identifier: Apache-2.0
// Order of the launches of a call under programmatic dependent launch (turn.h; launch.cpp gives the reasons): the launch for
// which a kernel waits, and the launch that it lets start.
//
// alone: the kernel waits for prepare where it must, and lets no launch start before all its blocks have ended.
//
// first, beside and last are three launches that run at the same time, in this order in the stream. `beside` starts when all
// blocks of `first` have let it start (let_dependents_start), and `last` likewise after `beside`. Blocks of `first` let it start
// after they have waited for prepare, so `beside` and `last` find what prepare wrote. Block 0 of each launch waits, at its end,
// until the launch ahead is complete; the other blocks do not wait. So `last` is complete only after `first` and `beside` are,
// and what follows `last` in the stream follows all three.
//
// leading and trailing are decode and prefill one after the other, where the plan does not know whether a request is long. Blocks
// of `trailing` come as soon as those of `leading` leave, and leave at once if the list is empty. Block 0 waits for `leading` to
// be complete, and so do all blocks before they begin where there is work.
#pragma once

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/gpu/args.h"
#include "backend/gpu/draw.h"

namespace quire::cuda::sm90 {

/// At the end of every thread, or of what it writes.
__device__ inline void end_turn(const HopperArgs& args) {
  const bool alone = args.turn == Turn::alone || args.turn == Turn::leading;
  if (alone || blockIdx.x == 0) wait_for_dependencies();
}

/// Begins a prefill block. False in blocks that leave their SM to decode, or that find nothing left: a list that began on all
/// SMs is drawn from until it is empty.
__device__ inline bool begin_turn(const HopperArgs& args) {
  if (args.turn == Turn::last) {
    const bool left =
        *static_cast<const volatile std::int32_t*>(args.common.work.division.units) < args.common.work.division.all_units;
    if (!left) end_turn(args);
    return left;
  }
  wait_for_dependencies();
  const bool first = args.turn == Turn::first;
  if (first) {
    __threadfence();
    let_dependents_start();
  }
  gpu::confirm_if_first(args.common);
  return !first || static_cast<int>(blockIdx.x) < *args.common.work.division.units;
}

/// Whether prefill has nothing to do: it is the second launch of a call, for long requests that may come, and none came. A block
/// asks this before anything else, because most calls have none.
__device__ inline bool trails_nothing(const HopperArgs& args) {
  if (args.turn != Turn::trailing) return false;
  return *static_cast<const volatile std::int32_t*>(args.common.work.num_slices) == 0;
}

/// Number of pairs of blocks that draw items from prefill's list, in all launches of prefill together.
__device__ inline int drawing_pairs(const HopperArgs& args) {
  const int all = static_cast<int>(gridDim.x) / kPair;
  if (args.turn != Turn::first && args.turn != Turn::last) return all;
  const int units = *static_cast<const volatile std::int32_t*>(args.common.work.division.units);
  return units / kPair + (units < args.common.work.division.all_units ? all : 0);
}

/// Number of the item that a pair takes; as gpu::draw_item().
__device__ inline int draw_of_pair(const HopperArgs& args, int num_items) {
  const int index = atomicAdd(args.common.work.next_item, 1);
  if (index >= num_items && index == num_items + drawing_pairs(args) - 1) atomicExch(args.common.work.next_item, 0);
  return index;
}

/// Lets the trailing launch start. A decode block calls this when it has nothing left to copy: all blocks of decode have a
/// SM by then, and the trailing launch finds what prepare wrote.
__device__ inline void let_trailing_start(const HopperArgs& args) {
  if (args.turn != Turn::leading) return;
  wait_for_dependencies();
  __threadfence();
  let_dependents_start();
}

/// Number of decode blocks that have work, with kBlocks of them on an SM.
template <int kBlocks>
__device__ inline int begin_decode_turn(const HopperArgs& args) {
  // A layer finds nothing of its call ahead of it, so what it reads may still be written.
  if (args.common.prepared && args.turn != Turn::beside) wait_for_dependencies();
  if (args.turn != Turn::beside) return static_cast<int>(gridDim.x);
  let_dependents_start();
  const int units = *static_cast<const volatile std::int32_t*>(args.common.work.division.units);
  return (args.common.work.division.all_units - units) * kBlocks;
}

}  // namespace quire::cuda::sm90
