// SPDX-License-Identifier: Apache-2.0
// The producer warps of MLA decode: each copies one part of every tile by tensor copies (TMA). The blocks of a pair copy a part
// of it each to both, because reads of the L2 cache by all blocks are near its limit. A tile is asked into L2 two tiles ahead:
// the memory for it becomes free too late to wait for more than L2.
#pragma once

#include "backend/cuda/sm90/mla/memory.h"

namespace quire::cuda::sm90::mla {

/// Coordinates of boxes: dim 0, token of the page, which 64 dims, page.
__device__ inline void prefetch_box(const CUtensorMap* map, int token, int box, int page) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(0), "r"(token), "r"(box),
               "r"(page)
               : "memory");
}

template <bool kPaired>
struct Producer {
  static constexpr int kBlocks = Team<kPaired>::kBlocks;

  const gpu::AttendArgs& a;
  const LatentMaps& maps;
  Shared& shared;
  const int part;  ///< the warp's
  const int rank;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ int boxes_of_tokens() const { return kKeys >> maps.box_shift; }

  /// Whether box `t` of the tokens of tile `n` holds a key that a row sees.
  __device__ bool is_seen(const KeySpan& span, int n, int t) const {
    const int position = n * kKeys + t * maps.box_tokens;
    return position < span.seen_end && position + maps.box_tokens > span.seen_begin;
  }
  /// Page of box `lane` of the tokens of a tile. No page is outside the tensor: it gives zeros.
  __device__ int look_up(const tile::Item& item, const KeySpan& span, int n) const {
    if (n >= span.end || lane() >= boxes_of_tokens() || !is_seen(span, n, lane())) return -1;
    const std::int64_t page = a.block_table.page(item.slice.req, (n * kKeys + lane() * maps.box_tokens) / a.page_size);
    return page < 0 || page >= a.num_pages ? -1 : static_cast<int>(page);
  }

  /// Calls copy(map, first box, tokens before, token of the page, page) for the copies of a part of tile `n` that are this
  /// block's and this lane's.
  template <typename Copy>
  __device__ void for_each_copy(std::uint32_t seen, int n, int slot, int pages, Copy&& copy) const {
    const int tokens = maps.box_tokens, blocks = boxes_of_tokens(), values = kHalfBoxes / maps.boxes * blocks;
    const int copies = values + (slot != part ? blocks : 0);
    for (int first = 0; first < copies; first += 32 * kBlocks) {
      const int i = first + lane() * kBlocks + (rank + slot) % kBlocks, t = i % blocks;
      const int page = __shfl_sync(~0u, pages, t);
      if (i >= copies || (seen >> t & 1) == 0) continue;
      const int box = i < values ? part * kHalfBoxes + i / blocks * maps.boxes : kWeightBox;
      copy(i < values ? &maps.values : &maps.rope, box, t * tokens, (n * kKeys + t * tokens) % a.page_size, page);
    }
    __syncwarp();
  }

  /// The part of tile `n`.
  __device__ void copy_tile(const KeySpan& span, int n, int slot, int pages, Phases& phases) const {
    const std::uint32_t seen = __ballot_sync(~0u, lane() < boxes_of_tokens() && is_seen(span, n, lane()));
    hopper::Barrier& full = shared.full[slot][part];
    hopper::wait(&shared.free[slot][part], phases.of(slot) ^ 1);
    if (lane() == 0) hopper::arrive_and_expect(&full, __popc(seen) * boxes_of_part(slot, part) * maps.box_tokens * kRowBytes);
    __syncwarp();
    for_each_copy(seen, n, slot, pages, [&](const CUtensorMap* map, int box, int before, int token, int page) {
      Byte* const to = shared.keys[slot].boxes[box] + before * kRowBytes;
      if constexpr (kPaired)
        hopper::copy_box_to_pair(to, map, &full, 0, token, box, page);
      else
        hopper::copy_box_once(to, map, &full, 0, token, box, page);
    });
    phases.advance(slot);
  }
  __device__ void prefetch_tile(const KeySpan& span, int n, int slot, int pages) const {
    const std::uint32_t seen = __ballot_sync(~0u, n < span.end && lane() < boxes_of_tokens() && is_seen(span, n, lane()));
    for_each_copy(seen, n, slot, pages,
                  [&](const CUtensorMap* map, int box, int, int token, int page) { prefetch_box(map, token, box, page); });
  }

  __device__ void run() const {
    Phases phases;
    Items<kPaired> items{a, shared};
    while (items.advance()) {
      const tile::Item& item = items.item();
      const KeySpan span = key_span(a, item);
      int pages = look_up(item, span, span.first), next = look_up(item, span, span.first + 1);
      int ahead = look_up(item, span, span.first + 2);
#pragma unroll 1
      for (int n = span.first; n < span.end; ++n) {
        const int slot = (n - span.first) % 2;
        copy_tile(span, n, slot, pages, phases);
        prefetch_tile(span, n + 2, slot, ahead);
        pages = next, next = ahead;
        ahead = look_up(item, span, n + 3);
      }
    }
  }
};

}  // namespace quire::cuda::sm90::mla
