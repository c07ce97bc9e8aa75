// SPDX-License-Identifier: Apache-2.0
// Blocks draw items of a work list until it is empty, and what an item goes through whatever the shape of its tile.
#pragma once

#include "backend/gpu/draw.h"
#include "backend/hip/matrix/finish.h"
#include "backend/hip/matrix/whole_rows.h"

namespace quire::hip::matrix {

/// From thread 0 to all.
struct Signals {
  std::int32_t next_item;   ///< the item to attend
  std::int32_t is_last;     ///< whether its part was the last of its tile
  std::int32_t non_finite;  ///< whether some sum is infinite or NaN
};

/// In scalar registers: it came from memory that kernels write, so the compiler cannot know it the same for all lanes.
QUIRE_DEVICE gpu::GenericItem uniform_item(const gpu::AttendArgs& a, std::int32_t index) {
  gpu::GenericItem item = gpu::item_at(a, index);
  for (std::int32_t* field :
       {&item.slice.req, &item.slice.row_begin, &item.slice.row_end, &item.slice.part, &item.slice.num_parts, &item.slice.merge,
        &item.slice.first_partial, &item.slice.key_begin, &item.slice.key_end, &item.lengths.first_token, &item.lengths.query_len,
        &item.lengths.context_len, &item.lengths.cached_len, &item.kv_head, &item.num_rows, &item.first_visible})
    *field = gpu::wave_uniform(*field);
  return item;
}

/// Persistent: any number of blocks. attend(args, item, whole_rows) is called by all threads of the block.
template <class T, int kDim, int kThreads, class Attend>
QUIRE_DEVICE void for_each_item(const gpu::AttendArgs& args, Signals* signals, Attend&& attend) {
  gpu::confirm_if_first(args);
  if (gpu::is_refused(args)) return;
  const std::int32_t num_items = *args.work.num_slices * args.num_kv_heads;
  const bool whole_rows = has_whole_rows(args);
  if (gpu::thread_here() == 0) signals->non_finite = 0;
  for (;;) {
    const gpu::AttendArgs& a = gpu::args_here(args);
    // The item before has had barriers since its number was read.
    if (gpu::thread_here() == 0) signals->next_item = gpu::draw_item(a, num_items);
    gpu::block_barrier();  // the item's number is visible, and no thread reads the previous item's shared memory
    const std::int32_t index = gpu::wave_uniform(signals->next_item);
    if (index >= num_items) return;
    const gpu::GenericItem item = uniform_item(a, index);
    attend(a, item, whole_rows);
    if (item.slice.num_parts > 1) {
      if (!gpu::is_last_part(a, item, &signals->is_last)) continue;
      merge_parts<T, kDim, kThreads>(a, item, whole_rows);
    }
    if (gpu::thread_here() == 0) gpu::atomic_add(&a.outcome->rows_written, static_cast<unsigned long long>(item.num_rows));
  }
}

/// A whole launch of one tile shape: its shared memory, and an item after the other.
template <class Kernel, class T, int kDim>
QUIRE_DEVICE void attend_items(const gpu::AttendArgs& args, gpu::SharedArea area) {
  const typename Kernel::Shared shared(area);
  for_each_item<T, kDim, Kernel::kThreads>(args, shared.signals,
                                           [&](const gpu::AttendArgs& a, const gpu::GenericItem& item, bool whole_rows) {
                                             Kernel(a, shared, item, whole_rows).run();
                                           });
}

/// Folds the item's keys into `sums`: fold_segment(segment, careful) for each kind of keys. A value that some rows of a tile see
/// and others do not enters the product of all of them, with weight 0 for those. If it is infinite or NaN their sums become NaN:
/// this is noticed at the end, and the item is done again with such values kept out of the product and added where they are seen.
template <class Gpu, int kBlocks, class FoldSegment>
QUIRE_DEVICE void fold_item(const gpu::AttendArgs& a, const gpu::GenericItem& item, Signals* signals, RowSums<Gpu, kBlocks>& sums,
                            FoldSegment&& fold_segment) {
  QUIRE_NO_UNROLL
  for (bool careful = false;; careful = true) {
    sums.clear();
    QUIRE_NO_UNROLL
    for (int i = 0; i < 2; ++i) {
      const Segment segment = segment_of(a, item, i);
      if (segment.begin >= segment.end) continue;
      fold_segment(segment, careful);
      if (segment.v_scale != 1.0f) sums.scale(segment.v_scale);
    }
    if (!any_in_block(!sums.all_finite(), &signals->non_finite) || careful) break;
  }
  sums.sum_over_lanes();
}

}  // namespace quire::hip::matrix
