// SPDX-License-Identifier: Apache-2.0
// The copying warps of prefill.h: they draw items, and fill the rings of key and value tiles.
#pragma once

#include "backend/cuda/sm90/packed_layout.h"
#include "backend/cuda/sm90/prefill_memory.h"
#include "backend/cuda/sm90/turns.h"

namespace quire::cuda::sm90 {

/// What they do whatever the cache holds.
template <typename Memory_>
struct PrefillItems {
  using Memory = Memory_;
  using Shared = typename Memory::Shared;
  using Tile = typename Memory::Tile;
  using Ring = typename Memory::Ring;
  using JobRing = typename Memory::JobRing;
  static constexpr int kHalves = Memory::kHalves, kKeys = Memory::kKeys, kRowBytes = Memory::kRowBytes,
                       kWorkers = Memory::kWorkers;

  const gpu::AttendArgs& a;
  const PrefillMaps& maps;
  Shared& shared;
  const int rank;  ///< of this block in its pair

  __device__ static int copy_warp() { return (static_cast<int>(threadIdx.x) - kWorkers) / 32; }

  /// One box a lane.
  struct Box {
    bool fresh;
    bool mine;            ///< this lane of this warp copies one
    int row, part;        ///< of the tile: its first row, and which part of the dims
    int token, page;      ///< coordinates
    std::uint32_t bytes;  ///< of all boxes of the tile
  };

  /// How boxes lie in a tile: each has `tokens` rows of `row_bytes` bytes, one of `parts` parts of the dims; of every `of`
  /// neighbours box `which` is this warp's.
  struct Boxes {
    int tokens, parts, row_bytes;
    int of, which;
  };

  /// Boxes that hold no key of the span are not copied.
  __device__ static Box box_of(const KeyTileSpan& span, const Boxes& boxes) {
    const int lane = threadIdx.x % 32;
    Box box;
    box.fresh = span.fresh;
    box.row = lane / boxes.parts * boxes.tokens, box.part = lane % boxes.parts;
    const int position = span.first + box.row;
    const bool needed = box.row < kKeys && position < span.end && position + boxes.tokens > span.begin;
    box.bytes = __popc(__ballot_sync(~0u, needed)) * boxes.tokens * boxes.row_bytes;
    box.mine = needed && lane % boxes.of == boxes.which;
    box.token = position, box.page = 0;
    return box;
  }

  __device__ static Box fresh_box(const PrefillJob& job, const KeyTileSpan& span, int of, int which) {
    Box box = box_of(span, {kFreshTokens, kHalves, kRowBytes, of, which});
    box.token += job.item.lengths.first_token - job.item.lengths.context_len;
    return box;
  }

  /// Pages of boxes [32 group, 32 group + 32), one a lane; those that no row sees are not looked up.
  __device__ int look_up(const PrefillJob& job, int group) const {
    const int token = (group * 32 + static_cast<int>(threadIdx.x) % 32) * maps.cache.box_tokens;
    if (token + maps.cache.box_tokens <= job.item.slice.key_begin || token >= job.cached_end) return -1;
    return static_cast<int>(a.block_table.page(job.item.slice.req, token / a.page_size));
  }

  /// Page ids of a job, 32 boxes at a time and one group ahead.
  struct PageIds {
    int group = -1, ids = -1, below = -1;
  };

  /// Tiles from the last to the first. Boxes are 8, 16, 32 or 64 tokens.
  __device__ Box cached_box(const PrefillJob& job, const KeyTileSpan& span, const Boxes& boxes, PageIds& pages) const {
    Box box = box_of(span, boxes);
    const int shift = 31 - __clz(boxes.tokens), group = span.first >> shift >> 5;
    if (group != pages.group) {
      pages.ids = pages.group < 0 ? look_up(job, group) : pages.below;
      pages.below = group > 0 ? look_up(job, group - 1) : -1;
      pages.group = group;
    }
    box.page = __shfl_sync(~0u, pages.ids, box.token >> shift & 31);
    box.token = a.page_size > boxes.tokens ? box.token % a.page_size : 0;
    return box;
  }

  /// A box of a packed cache to both blocks. Coordinates: of keys the core matrix; of values the first token of the row.
  template <bool kValues>
  __device__ static void copy_packed(void* to, const CUtensorMap& map, hopper::Barrier& full, const Box& box, int kv_head) {
    hopper::copy_box_to_pair(to, &map, &full, kValues ? box.token : 0, 0, kValues ? 0 : box.token / kPackedKeys, kv_head,
                             box.page);
  }

  /// Codes are read by the warpgroups that multiply (prefill.h).
  __device__ void copy_query(const PrefillJob& job, const JobRing& jobs) const {
    if (Memory::kCodes && a.query.dtype == DType::fp8_e4m3fn) return hopper::arrive(&shared.job_full[jobs.stage]);
    const int tokens = a.work.tile_rows / kPair / a.group,
              first = job.item.lengths.first_token + job.item.slice.row_begin / a.group + rank * tokens;
    hopper::Barrier* const full = &shared.job_full[jobs.stage];
    hopper::arrive_and_expect(full, kHalves * tokens * a.group * kRowBytes);
    for (int half = 0; half < kHalves; ++half)
      hopper::copy_box(shared.query[jobs.stage % Memory::kQueries].halves[half], &maps.query, full, half * 64,
                       job.item.kv_head * a.group, first, 0);
  }

  /// Where a job has no memory for its query until the one before it is ended: called when what can be done without is done.
  __device__ void copy_query_late(const PrefillJob& job, const JobRing& jobs) const {
    if constexpr (Memory::kQueries == Memory::kJobs) return;
    static_assert(Memory::kQueries == Memory::kJobs || (Memory::kQueries == 1 && Memory::kJobs == 2));
    if (threadIdx.x == kWorkers) {
      hopper::wait(&shared.job_free[jobs.stage ^ 1], jobs.parity ^ static_cast<std::uint32_t>(jobs.stage ^ 1));
      copy_query(job, jobs);
    }
    __syncwarp();
  }

  /// The next item of the pair: its first block draws and tells the second, once that one has read what lay in the slot.
  __device__ int draw(const JobRing& jobs) const {
    if (rank == 0) {
      const int index = draw_of_pair(a, shared.num_items);
      hopper::wait(&shared.index_free[jobs.stage], jobs.parity ^ 1);
      hopper::send(&shared.index[jobs.stage], index, &shared.index_full[jobs.stage], 1);
      return index;
    }
    hopper::arrive_and_expect(&shared.index_full[jobs.stage], sizeof(int));
    hopper::wait(&shared.index_full[jobs.stage], jobs.parity);
    const int index = *static_cast<volatile int*>(&shared.index[jobs.stage]);
    hopper::arrive_in_cluster(&shared.index_free[jobs.stage], 0);
    return index;
  }

  /// Draws an item and tells the block.
  __device__ void start_job(const JobRing& jobs) const {
    PrefillJob& job = shared.jobs[jobs.stage];
    hopper::wait(&shared.job_free[jobs.stage], jobs.parity ^ 1);
    const int index = draw(jobs);
    if (index < shared.num_items) {
      job = prefill_job<kKeys>(a, index, Memory::kCodes);
      hopper::arrive(&shared.job_known[jobs.stage]);
      if constexpr (Memory::kQueries == Memory::kJobs) copy_query(job, jobs);
    } else {
      job.cached_tiles = kNoMoreJobs;
      hopper::arrive(&shared.job_known[jobs.stage]);
      hopper::arrive(&shared.job_full[jobs.stage]);
    }
  }

  /// Draws items until there are none; one thread. Not before it must: what is drawn waits for this pair while others may have
  /// nothing to do.
  __device__ void draw_all() const {
    shared.num_items = gpu::is_refused(a) ? 0 : *a.work.num_slices * a.num_kv_heads;
    std::uint32_t parity = 0;
    for (JobRing jobs;; jobs.advance()) {
      start_job(jobs);
      if (shared.jobs[jobs.stage].cached_tiles == kNoMoreJobs) return;
      hopper::wait(&shared.draw_next, parity);
      parity ^= 1;
    }
  }

  /// Calls each(job, its place in the ring) until there are no items. kDraws: this warp's first thread draws them.
  template <bool kDraws, typename Each>
  __device__ void for_each_job(Each&& each) const {
    if (kDraws && threadIdx.x == kWorkers) shared.num_items = gpu::is_refused(a) ? 0 : *a.work.num_slices * a.num_kv_heads;
    JobRing jobs;
    for (;; jobs.advance()) {
      const PrefillJob& job = shared.jobs[jobs.stage];
      if (kDraws && threadIdx.x == kWorkers) start_job(jobs);
      if (kDraws) __syncwarp();
      hopper::wait(&shared.job_known[jobs.stage], jobs.parity);
      if (job.cached_tiles == kNoMoreJobs) return;
      each(job, jobs);
      __syncwarp();
      free_in_block(shared.job_free[jobs.stage]);
    }
  }
};

/// 16-bit tiles as they are stored. Warps 0 and 1 copy keys, 2 values: issuing a copy takes a warp some 100 cycles, and a tile
/// may be 16 of them, of which each block of the pair copies half to both. Warp 3 draws items, ahead of the others: from the draw
/// to the first keys it is four round trips to memory.
template <int kDim, CacheKind kCache>
struct PrefillCopy : PrefillItems<PrefillMemory<kDim, kCache>> {
  using Base = PrefillItems<PrefillMemory<kDim, kCache>>;
  using Base::copy_warp, Base::maps, Base::shared, Base::kKeys, Base::kRowBytes;
  using typename Base::Box;
  using typename Base::Boxes;
  using typename Base::Memory;
  using typename Base::Ring;
  using typename Base::Tile;
  static constexpr int kKeyWarps = 2, kDrawingWarp = 3;
  static constexpr int kDrawAhead = 3;  ///< tiles

  template <bool kValues>
  __device__ void copy_tile(Tile& to, const CUtensorMap& map, hopper::Barrier& free, hopper::Barrier& full, Ring& ring,
                            const Box& box, int kv_head) const {
    hopper::wait(&free, ring.parity ^ 1);
    if (threadIdx.x % 64 == 0) hopper::arrive_and_expect(&full, box.bytes);
    __syncwarp();
    if (box.mine && Memory::kPacked && !box.fresh)
      this->template copy_packed<kValues>(to.halves[0] + box.row * kDim * 2, map, full, box, kv_head);
    else if (box.mine)
      hopper::copy_box_to_pair(to.halves[box.part] + box.row * kRowBytes, &map, &full, box.part * 64, box.token, kv_head,
                               box.page);
    ring.advance();
  }
  __device__ void copy_keys(const Box& box, int kv_head, Ring& ring) const {
    copy_tile<false>(shared.k[ring.stage], box.fresh ? maps.key : maps.cache.k, shared.k_free[ring.stage],
                     shared.k_full[ring.stage], ring, box, kv_head);
  }
  __device__ void copy_values(const Box& box, int kv_head, Ring& ring) const {
    copy_tile<true>(shared.v[ring.stage], box.fresh ? maps.value : maps.cache.v, shared.v_free[ring.stage],
                    shared.v_full[ring.stage], ring, box, kv_head);
  }

  __device__ void copy_all() const {
    if (copy_warp() == kDrawingWarp) {
      if (threadIdx.x % 32 == 0) this->draw_all();
      __syncwarp();
      return;
    }
    Ring ring;
    const bool keys = copy_warp() < kKeyWarps;
    const int of = keys ? kKeyWarps * kPair : kPair, which = keys ? kPair * copy_warp() + this->rank : this->rank;
    const Boxes boxes = Memory::kPacked ? Boxes{maps.cache.box_tokens, 1, kDim * 2, of, which}
                                        : Boxes{maps.cache.box_tokens, Base::kHalves, kRowBytes, of, which};
    this->template for_each_job<false>([&](const PrefillJob& job, const typename Base::JobRing&) {
      typename Base::PageIds pages;
      const auto draw_at = [&](int n) {
        if (n == max(job.tiles() - kDrawAhead, 0) && threadIdx.x == Base::kWorkers) hopper::arrive(&shared.draw_next);
      };
      if (job.tiles() == 0) draw_at(0);
      for (int n = 0; n < job.tiles(); ++n) {
        draw_at(n);
        const KeyTileSpan span = key_tile<kKeys>(job, n);
        const Box box = span.fresh ? this->fresh_box(job, span, of, which) : this->cached_box(job, span, boxes, pages);
        if (keys)
          copy_keys(box, job.item.kv_head, ring);
        else
          copy_values(box, job.item.kv_head, ring);
      }
    });
  }
};

}  // namespace quire::cuda::sm90
