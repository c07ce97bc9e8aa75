// SPDX-License-Identifier: Apache-2.0
// The producer warps of prefill for 16-bit caches: they draw items, and fill the rings of key and value tiles.
#pragma once

#include "backend/cuda/sm90/packed_layout.h"
#include "backend/cuda/sm90/prefill/boxes.h"
#include "backend/cuda/sm90/prefill/job_queue.h"

namespace quire::cuda::sm90::prefill {

/// 16-bit tiles as they are stored. Warps 0 and 1 copy keys, 2 values: issuing a copy takes a warp some 100 cycles, and a tile
/// may be 16 of them. Of boxes that both blocks need, each copies half to both. Warp 3 draws items, ahead of the others: from the
/// draw to the first keys it is four round trips to memory.
template <typename Memory>
struct Producer {
  using Boxes = TileBoxes<Memory>;
  using Box = typename Boxes::Box;
  using Job = typename Memory::Job;
  using Ring = typename Memory::Ring;
  static constexpr int kDim = Memory::kDim, kKeys = Memory::kKeys, kRowBytes = Memory::kRowBytes;
  static constexpr int kKeyWarps = 2, kDrawingWarp = 3;
  static constexpr int kDrawAhead = 3;                                    ///< tiles
  static constexpr int kValueShares = Memory::kSplitsValues ? 1 : kPair;  ///< blocks that share the boxes of a tile of values

  const Block<Memory> block;
  const JobQueue<Memory> queue{block};
  const Boxes boxes{block};

  /// Number of a warp among the producer warps.
  __device__ static int warp() { return (static_cast<int>(threadIdx.x) - Memory::kConsumerThreads) / 32; }

  /// Boxes of keys, and of values that both blocks need, go to both.
  template <bool kValues, typename Tile>
  __device__ void copy_tile(Tile& to, const CUtensorMap& map, hopper::Barrier& free, hopper::Barrier& full, Ring& ring,
                            const Box& box, int kv_head) const {
    hopper::wait(&free, ring.parity ^ 1);
    if (threadIdx.x % 64 == 0) hopper::arrive_and_expect(&full, box.bytes);
    __syncwarp();
    if (box.mine && Memory::kPacked && !box.fresh)
      Boxes::template copy_packed<kValues>(to.halves[0] + box.row * kDim * 2, map, full, box, kv_head);
    else if (box.mine && kValues && Memory::kSplitsValues)
      hopper::copy_box(to.halves[box.part] + box.row * kRowBytes, &map, &full, block.first_out_dim() + box.part * 64, box.token,
                       kv_head, box.page);
    else if (box.mine)
      hopper::copy_box_to_pair(to.halves[box.part] + box.row * kRowBytes, &map, &full, box.part * 64, box.token, kv_head,
                               box.page);
    ring.advance();
  }
  __device__ void copy_keys(const Box& box, int kv_head, Ring& ring) const {
    copy_tile<false>(block.shared.k[ring.stage], box.fresh ? block.maps.key : block.maps.cache.k, block.shared.k_free[ring.stage],
                     block.shared.k_full[ring.stage], ring, box, kv_head);
  }
  __device__ void copy_values(const Box& box, int kv_head, Ring& ring) const {
    copy_tile<true>(block.shared.v[ring.stage], box.fresh ? block.maps.value : block.maps.cache.v,
                    block.shared.v_free[ring.stage], block.shared.v_full[ring.stage], ring, box, kv_head);
  }

  __device__ void run() const {
    if (warp() == kDrawingWarp) {
      if (threadIdx.x % 32 == 0) queue.draw_all();
      __syncwarp();
      return;
    }
    Ring ring;
    const bool keys = warp() < kKeyWarps;
    const int of = keys ? kKeyWarps * kPair : kValueShares;
    const int which = keys ? kPair * warp() + block.rank : block.place_of_rows();
    const int parts = keys ? Memory::kHalves : Memory::kOutHalves;
    const typename Boxes::Layout layout = Memory::kPacked
                                              ? typename Boxes::Layout{block.maps.cache.box_tokens, 1, kDim * 2, of, which}
                                              : typename Boxes::Layout{block.maps.cache.box_tokens, parts, kRowBytes, of, which};
    queue.template for_each_job<false>([&](const Job& job, const typename Memory::JobRing&) {
      typename Boxes::PageIds pages;
      const auto draw_at = [&](int n) {
        if (n == max(job.tiles() - kDrawAhead, 0) && threadIdx.x == Memory::kConsumerThreads)
          hopper::arrive(&block.shared.draw_next);
      };
      if (job.tiles() == 0) draw_at(0);
      for (int n = 0; n < job.tiles(); ++n) {
        draw_at(n);
        const KeyTileSpan span = key_tile<kKeys>(job, n);
        const Box box = span.fresh ? boxes.uncached_box(job, span, parts, of, which) : boxes.cached_box(job, span, layout, pages);
        if (keys)
          copy_keys(box, job.item.kv_head, ring);
        else
          copy_values(box, job.item.kv_head, ring);
      }
    });
  }
};

}  // namespace quire::cuda::sm90::prefill
