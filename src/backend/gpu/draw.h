// SPDX-License-Identifier: Apache-2.0
// Stage: attend. The counters that a kernel uses up, each left at zero by the one who counts last: a layer finds them as the
// preparation left them, and nothing has to run between two layers.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/layer.h"

namespace quire::gpu {

/// Number of the item that a block takes. Every block of the launch draws until it is told num_items or more, once.
QUIRE_DEVICE std::int32_t draw_item(const AttendArgs& a, std::int32_t num_items) {
  const std::int32_t index = atomic_add(a.work.next_item, 1);
  if (index == num_items + num_blocks() - 1) atomic_set(a.work.next_item, 0);
  return index;
}

/// Counts one of a tile's `parts` as complete; true for the last one. A fence before the call publishes the part.
QUIRE_DEVICE bool count_part(std::int32_t* counter, std::int32_t parts) {
  const bool last = atomic_add(counter, 1) + 1 == parts;
  if (last) atomic_set(counter, 0);
  return last;
}

/// Confirms the layer in the first block. All threads of every block call it at the beginning.
QUIRE_DEVICE void confirm_if_first(const AttendArgs& a) {
  if (a.confirms && block_index() == 0 && thread_index() < wave_size()) confirm_layer(a, thread_index());
}

}  // namespace quire::gpu
