// SPDX-License-Identifier: Apache-2.0
// The consumer warpgroups of decode: pieces, one after the other.
#pragma once

#include "backend/cuda/sm90/decode/epilogue.h"
#include "backend/cuda/sm90/decode/mainloop.h"
#include "backend/cuda/sm90/decode/query.h"
#include "backend/cuda/sm90/launch_order.h"

namespace quire::cuda::sm90::decode {

/// T: type of query, output and this step's rows.
template <typename T, typename Memory>
struct Consumer {
  using Ring = typename Memory::Ring;
  using Online = Softmax<Memory>;
  using State = typename Online::State;
  using Me = Lane<typename Memory::Tiles>;
  static constexpr int kHalves = Memory::kHalves, kGroups = Memory::kGroups, kColumns = Online::kColumns;

  const HopperArgs& args;
  typename Memory::Shared& shared;
  const gpu::AttendArgs& a = args.common;
  const Warpgroup<Memory> group{a, shared};

  // --- reduction across warpgroups ---

  /// Writes the results of this warpgroup, not the first, for the first one.
  __device__ void send_results(State& state, std::uint32_t parity) const {
    const Me me;
    typename Memory::Found& found = shared.found[group.index - 1];
    hopper::wait(&shared.found_free[group.index - 1], parity ^ 1);
    Online::publish_sums(state, found.sums);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      if (me.lane() < 4 && me.warp() == 0) found.max[me.column(q)] = state.max[q];
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 2; ++j) found.out[me.column(q)][me.dim(half, j)] = state.out[half][q / 2 * 4 + j * 2 + q % 2];
    }
    Memory::arrive_warp(shared.found_full[group.index - 1]);
  }

  /// Reduces the results of warpgroup `other` into the first warpgroup's state, whose parts are combined.
  __device__ void reduce_results(State& state, int other, std::uint32_t parity) const {
    const Me me;
    const typename Memory::Found& found = shared.found[other - 1];
    hopper::wait(&shared.found_full[other - 1], parity);
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const float top = fmaxf(state.max[q], found.max[me.column(q)]);
      const float rescale = semantics::weight_in<ptx::Exp2>(state.max[q], top);
      const float weight = semantics::weight_in<ptx::Exp2>(found.max[me.column(q)], top);
      state.max[q] = top;
      state.sum[q] *= rescale;
      if (me.matrix_row() == 0) state.sum[q] += weight * Online::sum_of(found.sums, me.column(q));  // one thread a column
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& mine = state.out[half][q / 2 * 4 + j * 2 + q % 2];
          mine = mine * rescale + weight * found.out[me.column(q)][me.dim(half, j)];
        }
    }
    Memory::arrive_warp(shared.found_free[other - 1]);
  }

  // --- a piece ---

  /// Tiles of a piece before the first tile of warpgroup `index`.
  __device__ int tiles_before(const Job& job, int index) const {
    if constexpr (kGroups == 1) return 0;
    return group.by_rows(job) ? 0 : index ^ job.turn;
  }
  /// Folds the tiles of a piece that are this warpgroup's.
  __device__ void fold_tiles(State& state, const Job& job, Ring& ring, int& turn) const {
    static_assert(kGroups <= 2, "more would need more than one turn and parity");
    const Mainloop<Memory> mainloop{a, shared, group};
    Ring mine = ring;
    const int before = tiles_before(job, group.index), step = group.by_rows(job) ? 1 : kGroups;
    mine.advance(before);
    const Facts<Memory> facts = facts_of(group, job);
    const int begin = hopper::uniform(job.first), end = hopper::uniform(job.end);
#pragma unroll 1
    for (int tile = begin + before; tile < end; tile += step, mine.advance(step), turn ^= 1)
      mainloop.fold_tile(state, job, facts, tile, mine, kGroups == 1 ? mine.at & 1 : turn);
    if constexpr (kGroups == 1)
      ring = mine;
    else
      ring.skip(end - begin);
  }

  __device__ void run() const {
    const Epilogue<T, Memory> epilogue{args, shared, group};
    Ring ring;
    typename Memory::JobRing jobs;
    std::uint32_t found_parity = 0;  // parity of the mbarrier for results of another warpgroup
    int turn = 0;                    // buffer of the weights; a product may still read the last piece's
    int unmerged = 0;
#pragma unroll 1
    for (;; jobs.advance()) {
      hopper::wait(&shared.job_full[jobs.stage()], jobs.parity());
      const Job& job = shared.jobs[jobs.stage()];
      const int tiles = hopper::uniform(job.end - job.first);
      if (tiles == 0) break;
      load_query<T>(a, group, job);
      State state{};
#pragma unroll
      for (int q = 0; q < kColumns; ++q) state.max[q] = -INFINITY;
      fold_tiles(state, job, ring, turn);
      if constexpr (Memory::kHeads > 1) Online::keep_own_heads(state, a.group / 2);
      Online::combine_parts(state);
      if (group.index != 0 && !group.by_rows(job)) {
        if constexpr (kGroups > 1)
          if (tiles > tiles_before(job, group.index)) send_results(state, found_parity), found_parity ^= 1;
      } else {
        if constexpr (kGroups > 1)
          if (!group.by_rows(job) && tiles > tiles_before(job, 1)) reduce_results(state, 1, found_parity), found_parity ^= 1;
        epilogue.finish(state, job, unmerged);
      }
      Memory::arrive_warp(shared.job_free[jobs.stage()]);
    }
    if constexpr (Memory::kMergesLast)
      epilogue.with_output([&](auto output) { epilogue.template merge_last<output()>(unmerged); });
    end_turn(args);
  }
};

}  // namespace quire::cuda::sm90::decode
