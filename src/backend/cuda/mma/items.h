// SPDX-License-Identifier: Apache-2.0
// Items of a work list, drawn by the blocks of a launch one after the other.
#pragma once

#include "backend/cuda/tile/finish.h"
#include "backend/gpu/draw.h"

namespace quire::cuda::mma {

/// The item at hand and the next, of a block. All threads of the block call all functions together.
class Items {
 public:
  /// Draws the first item.
  __device__ Items(const gpu::AttendArgs& args, tile::Item (&items)[2]) : a_(args), items_(items) {
    __shared__ bool more[2];
    more_ = more;
    gpu::confirm_if_first(a_);
    num_items_ = gpu::is_refused(a_) ? 0 : *a_.work.num_slices * a_.num_kv_heads;
    if (threadIdx.x == 0) draw(0);
    __syncthreads();
  }
  __device__ bool has_one() const { return more_[slot_]; }
  __device__ const tile::Item& at_hand() const { return items_[slot_]; }
  /// Draws the next item. A block calls this once for each item. One thread looks up what the next item is, which takes three
  /// round trips to memory, so the best place for the call is behind copies that the block waits for anyway.
  __device__ void draw_next() {
    if (threadIdx.x == blockDim.x - 32) draw(slot_ ^ 1);
  }
  __device__ void advance() {
    __syncthreads();
    slot_ ^= 1;
  }

 private:
  __device__ void draw(int slot) {
    const int index = gpu::draw_item(a_, num_items_);
    more_[slot] = index < num_items_;
    if (index < num_items_) items_[slot] = tile::item_at(a_, index);
  }
  const gpu::AttendArgs& a_;
  tile::Item (&items_)[2];
  bool* more_;
  int num_items_, slot_ = 0;
};

}  // namespace quire::cuda::mma
