// SPDX-License-Identifier: Apache-2.0
// The producer warps of MLA decode: each copies the parts of tiles that one warpgroup frees, by tensor copies (TMA) of 8 keys, or
// key by key where pages do not hold whole eights of keys (token_copies.h).
//
// 8 keys are neighbours in memory, and a copy takes 512 bytes of each: DRAM delivers pieces of 128 bytes, 1152 apart, slower.
// Memory for a tile becomes free shortly before the tile is needed, so all that a copy takes is known before its memory is free.
#pragma once

#include "backend/cuda/sm90/mla/token_copies.h"
#include "backend/gpu/pages.h"

namespace quire::cuda::sm90::mla {

struct Producer {
  const gpu::AttendArgs& a;
  const LatentMaps& maps;
  Shared& shared;
  const int group;  ///< consumer warpgroup that frees the parts which this warp fills

  /// Tokens of a tile that this lane looks up: 8 neighbours, by one of the first 8 lanes, or single ones, two for each lane.
  static constexpr int kRuns = 2;
  struct Tokens {
    int token[kRuns], page[kRuns];  ///< token within a page, and page of the cache
    bool mine[kRuns];               ///< a row sees a token of the run
    std::uint32_t count;            ///< number of tokens that all lanes copy
  };
  /// Pages of the lane's tokens.
  struct Pages {
    std::int64_t page[kRuns];
  };

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ int key_of_lane(int run) const { return (run * 32 + lane()) * maps.copied_tokens; }
  __device__ bool is_mine(const KeySpan& span, int n, int run) const {
    const int key = key_of_lane(run), position = n * kKeys + key;
    return key < kKeys && position < span.seen_end && position + maps.copied_tokens > span.seen_begin;
  }
  __device__ Pages look_up(const tile::Item& item, const KeySpan& span, int n) const {
    Pages pages;
#pragma unroll
    for (int run = 0; run < kRuns; ++run)
      pages.page[run] =
          is_mine(span, n, run) ? gpu::page_at(a, item.slice.req, (n * kKeys + key_of_lane(run)) / a.page_size) : gpu::kNoPage;
    return pages;
  }
  /// A token without a page becomes zeros, or is not copied.
  __device__ Tokens tokens_of(const KeySpan& span, int n, const Pages& pages) const {
    Tokens tokens;
    tokens.count = 0;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      tokens.mine[run] = is_mine(span, n, run);
      tokens.token[run] = (n * kKeys + key_of_lane(run)) % a.page_size;
      tokens.page[run] = static_cast<int>(pages.page[run]);
      if (tokens.mine[run] && tokens.page[run] < 0) gpu::note_missing_page(a);
      tokens.count += __popc(__ballot_sync(~0u, tokens.mine[run])) * maps.copied_tokens;
    }
    return tokens;
  }

  /// Keys that no row sees, and those without a page, are left out.
  __device__ void copy_token_by_token(const Tokens& tokens, int slot, Part part, int box) const {
    const semantics::KvStrides& strides = a.cache_k.strides;
    const Byte* rows[kRuns];
#pragma unroll
    for (int run = 0; run < kRuns; ++run)
      rows[run] = tokens.mine[run] && tokens.page[run] >= 0
                      ? static_cast<const Byte*>(a.cache_k.data) + 2 * strides.row(tokens.page[run], 0, tokens.token[run])
                      : nullptr;
    if (part == kRest)
      copy_keys<kBoxes - kValueBoxes>(shared.keys[slot], rows, box);
    else
      copy_keys<kHalfBoxes>(shared.keys[slot], rows, box);
    arrive_with_copies(&shared.full[slot][part]);
  }

  /// `boxes` boxes of 64 dims, from `box` on.
  __device__ void copy_part(const Tokens& tokens, int slot, Part part, const CUtensorMap* map, int box, int boxes,
                            std::uint32_t parity) const {
    hopper::Barrier& full = shared.full[slot][part];
    hopper::wait(&shared.free[slot][part], parity ^ 1);
    if (maps.copied_tokens == 1) return copy_token_by_token(tokens, slot, part, box);
    if (lane() == 0) hopper::arrive_and_expect(&full, tokens.count * static_cast<std::uint32_t>(boxes * kRowBytes));
    __syncwarp();
    if (tokens.mine[0])
      hopper::copy_box_once(shared.keys[slot].pieces[lane()][box], map, &full, 0, tokens.token[0], box, tokens.page[0]);
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
      Pages pages = look_up(item, span, span.first + 1);
#pragma unroll 1
      for (int n = span.first; n < span.end; ++n) {
        const int slot = (n - span.first) % 2;
        const std::uint32_t parity = phases.of(slot);
        if (slot != group) copy_part(tokens, slot, kRest, &maps.rest, kWeightBox, 1, parity);
        copy_part(tokens, slot, static_cast<Part>(group), &maps.half, group * kHalfBoxes, kHalfBoxes, parity);
        phases.advance(slot);
        tokens = tokens_of(span, n + 1, pages);
        pages = look_up(item, span, n + 2);
      }
    }
  }
};

}  // namespace quire::cuda::sm90::mla
