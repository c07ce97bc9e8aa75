// SPDX-License-Identifier: Apache-2.0
// The producer warps of MLA decode: each copies one part of every tile by tensor copies (TMA), a box a lane.
#pragma once

#include "backend/cuda/sm90/mla/memory.h"

namespace quire::cuda::sm90::mla {

struct Producer {
  const gpu::AttendArgs& a;
  const CacheMaps& maps;
  Shared& shared;
  const int part;  ///< the warp's

  /// Whether box `t` of the tokens of tile `n` holds a key that a row sees.
  __device__ bool is_seen(const KeySpan& span, int n, int t) const {
    const int position = n * kKeys + t * maps.box_tokens;
    return position < span.seen_end && position + maps.box_tokens > span.seen_begin;
  }
  /// Page of this lane's box of tokens. No page is outside the tensor: it gives zeros.
  __device__ int look_up(const tile::Item& item, const KeySpan& span, int n) const {
    const int t = static_cast<int>(threadIdx.x) % 32 & ((kKeys >> maps.box_shift) - 1);
    if (n >= span.end || !is_seen(span, n, t)) return -1;
    const std::int64_t page = a.block_table.page(item.slice.req, (n * kKeys + t * maps.box_tokens) / a.page_size);
    return page < 0 || page >= a.num_pages ? -1 : static_cast<int>(page);
  }

  /// The part of tile `n`; `page` is that of this lane's box of tokens.
  __device__ void copy_tile(const tile::Item& item, const KeySpan& span, int n, int slot, int page, Phases& phases) const {
    const int tokens = maps.box_tokens, blocks = kKeys >> maps.box_shift, lane = static_cast<int>(threadIdx.x) % 32;
    const int t = lane & (blocks - 1), boxes = boxes_of_part(slot, part);
    const std::uint32_t seen = __ballot_sync(~0u, lane < blocks && is_seen(span, n, t));
    hopper::Barrier& full = shared.full[slot][part];
    hopper::wait(&shared.free[slot][part], phases.of(slot) ^ 1);
    if (lane == 0) hopper::arrive_and_expect(&full, __popc(seen) * boxes * tokens * kRowBytes);
    __syncwarp();
    if ((seen >> t & 1) != 0)
      for (int i = lane; i < boxes * blocks; i += 32) {
        const int box = box_of_part(part, i >> (6 - maps.box_shift));
        hopper::copy_box_once(shared.keys[slot].boxes[box] + t * tokens * kRowBytes, &maps.k, &full, box * kBoxDims,
                              (n * kKeys + t * tokens) % a.page_size, item.kv_head, page);
      }
    __syncwarp();
    phases.advance(slot);
  }

  __device__ void run() const {
    Phases phases;
    Items items{a, shared};
    while (items.advance()) {
      const tile::Item& item = items.item();
      const KeySpan span = key_span(a, item);
      int page = look_up(item, span, span.first);
#pragma unroll 1
      for (int n = span.first; n < span.end; ++n) {
        copy_tile(item, span, n, (n - span.first) % 2, page, phases);
        page = look_up(item, span, n + 1);
      }
    }
  }
};

}  // namespace quire::cuda::sm90::mla
