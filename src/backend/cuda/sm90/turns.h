// SPDX-License-Identifier: Apache-2.0
// Whom a kernel waits for, and whom it lets start, by its turn (gpu::Turn; launch.cpp says why they take turns).
//
// alone: the kernel waits for prepare where it must, and nobody waits for it in a special way. Otherwise, of first, beside and
// last: each starts once all blocks of the one ahead of it have, which the first do after they have waited for prepare; so what
// prepare wrote is there. None waits for the one ahead of it to be complete, but one block of each, at its end: what comes after
// the last of them comes after all.
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
