// SPDX-License-Identifier: Apache-2.0
// Boxes of a tile, as producer and transform warps of prefill copy them by the tensor copy engine (TMA): one a lane.
#pragma once

#include "backend/cuda/sm90/prefill/rows.h"
#include "backend/gpu/pages.h"

namespace quire::cuda::sm90::prefill {

template <typename Memory>
struct TileBoxes {
  using Job = typename Memory::Job;
  static constexpr int kKeys = Memory::kKeys, kRowBytes = Memory::kRowBytes;
  static constexpr bool kStraddles = kKeys % 64 != 0;  ///< boxes of a tile may lie in two groups of 32 boxes

  const Block<Memory> block;

  /// One box of a tile a lane.
  struct Box {
    bool fresh;
    bool mine;            ///< this lane of this warp copies a box
    int row, part;        ///< first row of the box in its tile, and its part of the dims
    int token, page;      ///< coordinates
    std::uint32_t bytes;  ///< bytes of all boxes of the tile
  };

  /// Layout of boxes in a tile: each has `tokens` rows of `row_bytes` bytes, one of `parts` parts of the dims. Of every `of`
  /// neighbours, box `which` is this warp's.
  struct Layout {
    int tokens, parts, row_bytes;
    int of, which;
  };

  __device__ static bool is_in_gap(const Job& job, int begin, int end) {
    if constexpr (Memory::kMasks) return job.is_in_gap(begin, end);
    return false;
  }

  /// Boxes that hold no key of the span, or only keys in a gap, are not copied.
  __device__ static Box box_of(const Job& job, const KeyTileSpan& span, const Layout& layout) {
    const int lane = threadIdx.x % 32;
    Box box;
    box.fresh = span.fresh;
    box.row = lane / layout.parts * layout.tokens, box.part = lane % layout.parts;
    const int position = span.first + box.row;
    const bool needed = box.row < kKeys && position < span.end && position + layout.tokens > span.begin &&
                        !is_in_gap(job, position, position + layout.tokens);
    box.bytes = __popc(__ballot_sync(~0u, needed)) * layout.tokens * layout.row_bytes;
    box.mine = needed && lane % layout.of == layout.which;
    box.token = position, box.page = 0;
    return box;
  }

  __device__ static Box uncached_box(const Job& job, const KeyTileSpan& span, int parts, int of, int which) {
    Box box = box_of(job, span, {most_box_tokens(kKeys), parts, kRowBytes, of, which});
    box.token += job.item.lengths.first_token - job.item.lengths.context_len;
    return box;
  }

  __device__ bool is_seen(const Job& job, int begin, int end) const {
    if constexpr (Memory::kMasks) return job.sees(block.a, begin, end);
    return max(begin, job.item.slice.key_begin) < end;
  }

  /// Page of box `box` of the request, or -1, which reads as zeros. Boxes in a gap, and those that no row of a call without masks
  /// sees, are not looked up.
  __device__ int page_of(const Job& job, int box) const {
    const int token = box * block.maps.cache.box_tokens, end = token + block.maps.cache.box_tokens;
    if (end <= job.item.slice.key_begin || token >= job.keys.cached_end || is_in_gap(job, token, end)) return -1;
    const std::int64_t page = gpu::page_at(block.a, job.item.slice.req, token / block.a.page_size);
    if (page == gpu::kNoPage && is_seen(job, token, min(end, job.keys.cached_end))) gpu::note_missing_page(block.a);
    return static_cast<int>(page);
  }
  /// Pages of boxes [32 group, 32 group + 32), one a lane.
  __device__ int look_up(const Job& job, int group) const {
    return page_of(job, group * 32 + static_cast<int>(threadIdx.x) % 32);
  }

  /// Page ids of a job, 32 boxes at a time and one group ahead.
  struct PageIds {
    int group = -1, ids = -1, below = -1;
  };

  /// Tiles from the last to the first. Boxes are 8, 16, 32 or 64 tokens.
  __device__ Box cached_box(const Job& job, const KeyTileSpan& span, const Layout& layout, PageIds& pages) const {
    Box box = box_of(job, span, layout);
    const int shift = 31 - __clz(layout.tokens), group = span.first >> shift >> 5;
    if (group != pages.group) {
      const bool is_known = Memory::kMasks ? pages.group == group + 1 : pages.group >= 0;  // masks leave gaps
      pages.ids = is_known ? pages.below : look_up(job, group);
      pages.below = group > 0 ? look_up(job, group - 1) : -1;
      pages.group = group;
    }
    const int number = box.token >> shift;
    box.page = __shfl_sync(~0u, pages.ids, number & 31);
    if (kStraddles && number >> 5 != group && box.mine) box.page = page_of(job, number);
    box.token = block.a.page_size > layout.tokens ? box.token % block.a.page_size : 0;
    return box;
  }

  /// A box of a packed cache to both blocks. Coordinates: of keys the core matrix; of values the first token of the row.
  template <bool kValues>
  __device__ static void copy_packed(void* to, const CUtensorMap& map, hopper::Barrier& full, const Box& box, int kv_head) {
    hopper::copy_box_to_pair(to, &map, &full, kValues ? box.token : 0, 0, kValues ? 0 : box.token / kPackedKeys, kv_head,
                             box.page);
  }
};

}  // namespace quire::cuda::sm90::prefill
