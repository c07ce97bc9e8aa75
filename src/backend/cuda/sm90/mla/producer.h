// SPDX-License-Identifier: Apache-2.0
// The producer warps of MLA decode: each copies the boxes that one warpgroup frees, by tensor copies (TMA).
//
// Memory for a tile becomes free shortly before the tile is needed. So boxes are freed, copied and waited for one by one, and all
// that a copy takes is known before its memory is free.
#pragma once

#include "backend/cuda/sm90/mla/memory.h"

namespace quire::cuda::sm90::mla {

struct Producer {
  const gpu::AttendArgs& a;
  const LatentMap& map;
  Shared& shared;
  const int group;  ///< that frees the warp's boxes

  /// Tokens that this lane copies of each box of a tile: a part of a page.
  struct Tokens {
    int row, token, page;  ///< first row of the tile; of the cache
    std::uint32_t bytes;   ///< of a box, all lanes
    bool mine;             ///< there are such tokens, and a row sees one of them
  };

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ int position_of_lane(int n) const { return n * kKeys + (lane() << map.box_shift); }
  /// Whether the lane has tokens of a tile, and some row sees one of them.
  __device__ bool is_mine(const KeySpan& span, int n) const {
    const int position = position_of_lane(n);
    return lane() < kKeys >> map.box_shift && position < span.seen_end && position + map.box_tokens > span.seen_begin;
  }
  /// The lane's page of tile `n`, as the table has it.
  __device__ std::int64_t look_up(const tile::Item& item, const KeySpan& span, int n) const {
    return is_mine(span, n) ? a.block_table.page(item.slice.req, position_of_lane(n) / a.page_size) : -1;
  }
  /// A page outside the tensor gives zeros.
  __device__ Tokens tokens_of(const KeySpan& span, int n, std::int64_t page) const {
    const bool mine = is_mine(span, n);
    const std::uint32_t bytes = static_cast<std::uint32_t>(__popc(__ballot_sync(~0u, mine)) << map.box_shift) * kRowBytes;
    return {lane() << map.box_shift, position_of_lane(n) % a.page_size,
            page < 0 || page >= a.num_pages ? -1 : static_cast<int>(page), bytes, mine};
  }

  __device__ void copy_box(const Tokens& tokens, int slot, int box, std::uint32_t parity) const {
    hopper::wait(&shared.free[slot][box], parity ^ 1);
    if (lane() == 0) hopper::arrive_and_expect(&shared.full[slot][box], tokens.bytes);
    __syncwarp();
    if (tokens.mine)
      hopper::copy_box_once(shared.keys[slot].boxes[box] + tokens.row * kRowBytes, &map.keys, &shared.full[slot][box],
                            box * kBoxDims, tokens.token, 0, tokens.page);
    __syncwarp();
  }

  /// Weights are freed before values are. The page of the next tile is there when the memory for it is; that of the one behind is
  /// on its way.
  __device__ void run() const {
    Phases phases;
    Items items{a, shared};
    while (items.advance()) {
      const tile::Item& item = items.item();
      const KeySpan span = key_span(a, item);
      Tokens tokens = tokens_of(span, span.first, look_up(item, span, span.first));
      std::int64_t page = look_up(item, span, span.first + 1);
#pragma unroll 1
      for (int n = span.first; n < span.end; ++n) {
        const int slot = (n - span.first) % 2;
        if (slot != group) copy_box(tokens, slot, kWeightBox, phases.of(slot));
#pragma unroll 1
        for (int i = 0; i < kHalfBoxes; ++i) copy_box(tokens, slot, group * kHalfBoxes + i, phases.of(slot));
        phases.advance(slot);
        tokens = tokens_of(span, n + 1, page);
        page = look_up(item, span, n + 2);
      }
    }
  }
};

}  // namespace quire::cuda::sm90::mla
