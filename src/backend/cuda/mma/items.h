// SPDX-License-Identifier: Apache-2.0
// Items of a work list, drawn by the blocks of a launch one after the other.
#pragma once

#include "backend/cuda/tile/finish.h"
#include "backend/gpu/draw.h"

namespace quire::cuda::mma {

/// Calls run(item, draw_next) for items of the list, all threads of the block together, until none is left. run() calls
/// draw_next() once, in all threads: one of them draws the next item and looks up what it is, which takes three round trips to
/// memory. The place for it is behind copies that the block waits for anyway.
template <typename Run>
__device__ inline void for_each_item(const gpu::AttendArgs& a, tile::Item (&items)[2], Run&& run) {
  __shared__ bool more[2];
  gpu::confirm_if_first(a);
  const int num_items = gpu::is_refused(a) ? 0 : *a.work.num_slices * a.num_kv_heads;
  const auto draw = [&](int slot) {
    const int index = gpu::draw_item(a, num_items);
    more[slot] = index < num_items;
    if (more[slot]) items[slot] = tile::item_at(a, index);
  };
  if (threadIdx.x == 0) draw(0);
  __syncthreads();
  for (int slot = 0; more[slot]; slot ^= 1) {
    run(items[slot], [&] {
      if (threadIdx.x == blockDim.x - 32) draw(slot ^ 1);
    });
    __syncthreads();
  }
}

}  // namespace quire::cuda::mma
