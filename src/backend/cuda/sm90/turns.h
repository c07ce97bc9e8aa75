// SPDX-License-Identifier: Apache-2.0
// Whom a kernel waits for, and whom it lets start, by its turn (gpu::Turn; launch.cpp says why they take turns).
//
// alone: the kernel waits for prepare where it must, and lets no launch start before all its blocks have ended.
//
// first, beside and last are three launches that run at the same time, in this order in the stream. `beside` starts when all
// blocks of `first` have let it start (launch_dependents), and `last` likewise after `beside`. Blocks of `first` let it start
// after they have waited for prepare, so `beside` and `last` find what prepare wrote. Block 0 of each launch waits, at its end,
// until the launch ahead is complete; the other blocks do not wait. So `last` is complete only after `first` and `beside` are,
// and what follows `last` in the stream follows all three.
#pragma once

#include "backend/cuda/sm90/hopper.h"
#include "backend/gpu/args.h"

namespace quire::cuda::sm90 {

/// At the end of every thread, or of what it writes.
__device__ inline void end_turn(const gpu::AttendArgs& a) {
  if (a.work.turn == gpu::Turn::alone || blockIdx.x == 0) hopper::wait_for_dependencies();
}

/// Of prefill: false in blocks that leave their multiprocessor to decode, or that find nothing left: a list that began on all
/// multiprocessors is drawn from until it is empty.
__device__ inline bool begin_turn(const gpu::AttendArgs& a) {
  if (a.work.turn == gpu::Turn::last) {
    const bool left = *static_cast<const volatile std::int32_t*>(a.work.division.units) < a.work.division.all_units;
    if (!left) end_turn(a);
    return left;
  }
  hopper::wait_for_dependencies();
  if (a.work.turn == gpu::Turn::alone) return true;
  __threadfence();
  hopper::launch_dependents();
  return static_cast<int>(blockIdx.x) < *a.work.division.units;
}

/// Of decode, kBlocks of it a multiprocessor: how many blocks there is work for.
template <int kBlocks>
__device__ inline int begin_decode_turn(const gpu::AttendArgs& a) {
  if (a.work.turn == gpu::Turn::alone) return static_cast<int>(gridDim.x);
  hopper::launch_dependents();
  const int units = *static_cast<const volatile std::int32_t*>(a.work.division.units);
  return (a.work.division.all_units - units) * kBlocks;
}

}  // namespace quire::cuda::sm90
