// SPDX-License-Identifier: Apache-2.0
// The producer warps of MLA decode: each copies the parts of tiles that one warpgroup frees, by tensor copies (TMA) of 8 keys.
//
// 8 keys are neighbours in memory, and a copy takes 512 bytes of each: DRAM delivers pieces of 128 bytes, 1152 apart, slower.
// Memory for a tile becomes free shortly before the tile is needed, so all that a copy takes is known before its memory is free.
#pragma once

#include "backend/cuda/sm90/mla/memory.h"

namespace quire::cuda::sm90::mla {

struct Producer {
  const gpu::AttendArgs& a;
  const LatentMaps& maps;
  Shared& shared;
  const int group;  ///< that frees the warp's parts

  /// The 8 tokens of a tile that this lane copies, if it is one of the first 8.
  struct Tokens {
    int token, page;      ///< of the cache
    std::uint32_t count;  ///< of all lanes
    bool mine;            ///< a row sees one of them
  };

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int position_of_lane(int n) { return n * kKeys + lane() * kPieceKeys; }
  __device__ static bool is_mine(const KeySpan& span, int n) {
    const int position = position_of_lane(n);
    return lane() < kPieces && position < span.seen_end && position + kPieceKeys > span.seen_begin;
  }
  /// The lane's page of tile `n`, as the table has it.
  __device__ std::int64_t look_up(const tile::Item& item, const KeySpan& span, int n) const {
    return is_mine(span, n) ? a.block_table.page(item.slice.req, position_of_lane(n) / a.page_size) : -1;
  }
  /// A page outside the tensor gives zeros.
  __device__ Tokens tokens_of(const KeySpan& span, int n, std::int64_t page) const {
    const bool mine = is_mine(span, n);
    const std::uint32_t count = __popc(__ballot_sync(~0u, mine)) * kPieceKeys;
    return {position_of_lane(n) % a.page_size, page < 0 || page >= a.num_pages ? -1 : static_cast<int>(page), count, mine};
  }

  /// `boxes` boxes of 64 dims, from `box` on.
  __device__ void copy_part(const Tokens& tokens, int slot, Part part, const CUtensorMap* map, int box, int boxes,
                            std::uint32_t parity) const {
    hopper::Barrier& full = shared.full[slot][part];
    hopper::wait(&shared.free[slot][part], parity ^ 1);
    if (lane() == 0) hopper::arrive_and_expect(&full, tokens.count * static_cast<std::uint32_t>(boxes * kRowBytes));
    __syncwarp();
    if (tokens.mine) hopper::copy_box_once(shared.keys[slot].pieces[lane()][box], map, &full, 0, tokens.token, box, tokens.page);
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
        const std::uint32_t parity = phases.of(slot);
        if (slot != group) copy_part(tokens, slot, kRest, &maps.rest, kWeightBox, 1, parity);
        copy_part(tokens, slot, static_cast<Part>(group), &maps.half, group * kHalfBoxes, kHalfBoxes, parity);
        phases.advance(slot);
        tokens = tokens_of(span, n + 1, page);
        page = look_up(item, span, n + 2);
      }
    }
  }
};

}  // namespace quire::cuda::sm90::mla
