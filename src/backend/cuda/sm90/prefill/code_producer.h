// SPDX-License-Identifier: Apache-2.0
// The producer warps of prefill for fp8 caches: they draw items, and copy codes. Each block of a pair copies half of the codes to
// both blocks.
#pragma once

#include "backend/cuda/sm90/prefill/boxes.h"
#include "backend/cuda/sm90/prefill/job_queue.h"

namespace quire::cuda::sm90::prefill {

/// One warp draws items and copies queries, one copies codes of keys, and one those of values; or one does all of it.
template <typename Memory>
struct CodeProducer {
  using Job = typename Memory::Job;
  using Boxes = TileBoxes<Memory>;
  using Box = typename Boxes::Box;
  using JobRing = typename Memory::JobRing;
  using CodeRing = typename Memory::CodeRing;
  static constexpr int kBoxDims = Memory::kBoxDims, kBoxes = Memory::kBoxes;
  static constexpr int kDim = Memory::kDim, kKeys = Memory::kKeys;

  const Block<Memory> block;
  const JobQueue<Memory> queue{block};
  const Boxes boxes{block};

  /// Number of a warp among the producer warps.
  __device__ static int warp() { return (static_cast<int>(threadIdx.x) - Memory::kConsumerThreads) / 32; }

  /// Codes of a tile's values, or of its keys.
  __device__ void copy_codes(bool values, const Box& box, const CodeRing& ring, int kv_head) const {
    auto& barriers = block.shared.code_barriers;
    hopper::Barrier* const full = (values ? barriers.v_full : barriers.k_full) + ring.stage;
    hopper::wait((values ? barriers.v_free : barriers.k_free) + ring.stage, ring.parity ^ 1);
    if (threadIdx.x % 32 == 0) hopper::arrive_and_expect(full, box.bytes);
    __syncwarp();
    auto& to = (values ? block.shared.codes.v : block.shared.codes.k)[ring.stage];
    const CUtensorMap* const map = values ? &block.maps.cache.v : &block.maps.cache.k;
    if (box.mine && Memory::kPacked && values)
      Boxes::template copy_packed<true>(to.boxes[0] + box.row * kDim, *map, *full, box, kv_head);
    else if (box.mine && Memory::kPacked)
      Boxes::template copy_packed<false>(to.boxes[0] + box.row * kDim, *map, *full, box, kv_head);
    else if (box.mine)
      hopper::copy_box_to_pair(to.boxes[box.part] + box.row * kBoxDims, map, full, box.part * kBoxDims, box.token, kv_head,
                               box.page);
  }

  __device__ Box box_of_tile(const Job& job, int n, typename Boxes::PageIds& pages) const {
    constexpr int kParts = Memory::kPacked ? 1 : kBoxes;
    return boxes.cached_box(job, key_tile<kKeys>(job, n), {block.maps.cache.box_tokens, kParts, kDim / kParts, kPair, block.rank},
                            pages);
  }

  __device__ void copy_tiles(const Job& job, CodeRing& ring) const {
    typename Boxes::PageIds pages;
    for (int n = 0; n < job.keys.cached_tiles; ++n, ring.advance())
      copy_codes(warp() == 2, box_of_tile(job, n, pages), ring, job.item.kv_head);
  }

  /// All of it, in the order in which codes are converted. Two tiles can be converted without the query.
  __device__ void copy_job_alone(const Job& job, const JobRing& jobs, CodeRing& ring) const {
    const int tiles = job.keys.cached_tiles;
    typename Boxes::PageIds pages;
    CodeRing before;
    Box box;
    for (int n = 0; n <= tiles; ++n) {
      if (n == 2) queue.copy_query_late(job, jobs);
      const Box last = box;
      if (n < tiles) box = box_of_tile(job, n, pages), copy_codes(false, box, ring, job.item.kv_head);
      if (n > 0) copy_codes(true, last, before, job.item.kv_head);
      before = ring;
      if (n < tiles) ring.advance();
    }
    if (tiles < 2) queue.copy_query_late(job, jobs);
  }

  __device__ void run() const {
    CodeRing ring;
    if constexpr (Memory::kProducerWarps == 1)
      queue.template for_each_job<true>([&](const Job& job, const JobRing& jobs) { copy_job_alone(job, jobs, ring); });
    else if (warp() == 0)
      queue.template for_each_job<true>([&](const Job& job, const JobRing& jobs) { queue.copy_query_late(job, jobs); });
    else if (warp() < Memory::kProducerWarps)
      queue.template for_each_job<false>([&](const Job& job, const JobRing&) { copy_tiles(job, ring); });
  }
};

}  // namespace quire::cuda::sm90::prefill
