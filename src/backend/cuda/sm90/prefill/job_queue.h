// SPDX-License-Identifier: Apache-2.0
// The jobs of a prefill block: a pair of blocks draws items of the list until none is left (persistent scheduler).
#pragma once

#include "backend/cuda/sm90/launch_order.h"
#include "backend/cuda/sm90/prefill/rows.h"

namespace quire::cuda::sm90::prefill {

template <typename Memory>
struct JobQueue {
  using Job = typename Memory::Job;
  using JobRing = typename Memory::JobRing;
  static constexpr int kHalves = Memory::kHalves, kKeys = Memory::kKeys, kRowBytes = Memory::kRowBytes;
  static constexpr int kConsumerThreads = Memory::kConsumerThreads;

  const Block<Memory> block;

  /// Copies the query of a job. Codes are read by the consumer warpgroups instead.
  __device__ void copy_query(const Job& job, const JobRing& jobs) const {
    if (Memory::kCodes && block.a.query.dtype == DType::fp8_e4m3fn) return hopper::arrive(&block.shared.job_full[jobs.stage]);
    const int tokens = block.block_rows() / block.a.group;
    const int first = job.item.lengths.first_token + job.item.slice.row_begin / block.a.group + block.place_of_rows() * tokens;
    hopper::Barrier* const full = &block.shared.job_full[jobs.stage];
    hopper::arrive_and_expect(full, kHalves * tokens * block.a.group * kRowBytes);
    for (int half = 0; half < kHalves; ++half)
      hopper::copy_box(block.shared.query[jobs.stage % Memory::kQueries].halves[half], &block.maps.query, full, half * 64,
                       job.item.kv_head * block.a.group, first, 0);
  }

  /// Copies the query of a job that has no memory for it until the job before it is ended. One thread calls this, when everything
  /// that needs no query is done.
  __device__ void copy_query_when_free(const Job& job, const JobRing& jobs) const {
    if constexpr (Memory::kQueries == Memory::kJobs) return;
    static_assert(Memory::kQueries == Memory::kJobs || (Memory::kQueries == 1 && Memory::kJobs == 2));
    hopper::wait(&block.shared.job_free[jobs.stage ^ 1], jobs.parity ^ static_cast<std::uint32_t>(jobs.stage ^ 1));
    copy_query(job, jobs);
  }
  /// A warp calls this: its first thread calls copy_query_when_free(), and the others wait for it.
  __device__ void copy_query_late(const Job& job, const JobRing& jobs) const {
    if constexpr (Memory::kQueries == Memory::kJobs) return;
    if (threadIdx.x == kConsumerThreads) copy_query_when_free(job, jobs);
    __syncwarp();
  }

  /// The next item of the pair: its first block draws and tells the second, once that one has read what lay in the slot.
  __device__ int draw(const JobRing& jobs) const {
    if (block.rank == 0) {
      const int index = draw_of_pair(block.args, block.shared.num_items);
      hopper::wait(&block.shared.index_free[jobs.stage], jobs.parity ^ 1);
      hopper::send(&block.shared.index[jobs.stage], index, &block.shared.index_full[jobs.stage], 1);
      return index;
    }
    hopper::arrive_and_expect(&block.shared.index_full[jobs.stage], sizeof(int));
    hopper::wait(&block.shared.index_full[jobs.stage], jobs.parity);
    const int index = *static_cast<volatile int*>(&block.shared.index[jobs.stage]);
    hopper::arrive_in_cluster(&block.shared.index_free[jobs.stage], 0);
    return index;
  }

  /// Draws an item and announces it to the block.
  __device__ void start_job(const JobRing& jobs) const {
    Job& job = block.shared.jobs[jobs.stage];
    hopper::wait(&block.shared.job_free[jobs.stage], jobs.parity ^ 1);
    const int index = draw(jobs);
    if (index < block.shared.num_items) {
      find_job<Job, kKeys>(block.a, index, Memory::kCodes, job);
      hopper::arrive(&block.shared.job_known[jobs.stage]);
      if constexpr (Memory::kQueries == Memory::kJobs) copy_query(job, jobs);
    } else {
      job.keys.cached_tiles = kNoMoreJobs;
      hopper::arrive(&block.shared.job_known[jobs.stage]);
      hopper::arrive(&block.shared.job_full[jobs.stage]);
    }
  }

  /// Draws items until there are none, by one thread, and as late as possible: a drawn item waits for this pair while other
  /// pairs may have no work.
  __device__ void draw_all() const {
    block.shared.num_items = gpu::is_refused(block.a) ? 0 : *block.a.work.num_slices * block.a.num_kv_heads;
    std::uint32_t parity = 0;
    for (JobRing jobs;; jobs.advance()) {
      start_job(jobs);
      const Job& job = block.shared.jobs[jobs.stage];
      if (job.ends_all()) return;
      copy_query_when_free(job, jobs);
      hopper::wait(&block.shared.draw_next, parity);
      parity ^= 1;
    }
  }

  /// Calls each(job, its place in the ring) until there are no items. kDraws: this warp's first thread draws them.
  template <bool kDraws, typename Each>
  __device__ void for_each_job(Each&& each) const {
    if (kDraws && threadIdx.x == kConsumerThreads)
      block.shared.num_items = gpu::is_refused(block.a) ? 0 : *block.a.work.num_slices * block.a.num_kv_heads;
    JobRing jobs;
    for (;; jobs.advance()) {
      const Job& job = block.shared.jobs[jobs.stage];
      if (kDraws && threadIdx.x == kConsumerThreads) start_job(jobs);
      if (kDraws) __syncwarp();
      hopper::wait(&block.shared.job_known[jobs.stage], jobs.parity);
      if (job.ends_all()) return;
      each(job, jobs);
      __syncwarp();
      free_in_block(block.shared.job_free[jobs.stage]);
    }
  }
};

}  // namespace quire::cuda::sm90::prefill
