// SPDX-License-Identifier: Apache-2.0
// The consumer warpgroups of prefill: jobs, one after the other.
#pragma once

#include "backend/cuda/sm90/prefill/epilogue.h"
#include "backend/cuda/sm90/prefill/mainloop.h"
#include "backend/cuda/sm90/prefill/transform.h"

namespace quire::cuda::sm90::prefill {

/// T: type of query, output and this step's rows.
template <typename T, typename Memory>
struct Consumer {
  using Online = Softmax<T, Memory>;
  using State = typename Online::State;
  using Totals = typename Online::Totals;
  using Weights = typename Online::Weights;
  using Turns = PingPong<Memory::kGroups>;
  using Query = typename Memory::Query;
  using Job = typename Memory::Job;
  using JobRing = typename Memory::JobRing;
  static constexpr int kDim = Memory::kDim, kKeys = Memory::kKeys, kRowBytes = Memory::kRowBytes;
  static constexpr bool kCodes = Memory::kCodes;

  const Block<Memory> block;
  const Mainloop<T, Memory> mainloop{block};
  const Epilogue<T, Memory> epilogue{block};

  /// Converts the warpgroup's rows of an e4m3fn query to f16, in the place of 16-bit rows. Rows that do not exist become zeros.
  __device__ void convert_query(Query& query, const Job& job, const Rows& rows) const {
    constexpr int kChunks = kDim / 16, kTurns = 64 * kChunks / 128;  // chunks of 16 codes
    uint4 codes[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int at = static_cast<int>(threadIdx.x) % 128 + i * 128, row = at / kChunks;
      const bool exists = rows.first + row < rows.end;
      const auto place = block.place_of(job, rows.first - job.item.slice.row_begin + (exists ? row : 0));
      const std::int64_t from = block.a.query.strides.row(0, place.head, place.token) + at % kChunks * 16;
      codes[i] = exists ? *reinterpret_cast<const uint4*>(static_cast<const unsigned char*>(block.a.query.data) + from) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int at = static_cast<int>(threadIdx.x) % 128 + i * 128, row = at / kChunks, chunk = at % kChunks * 2;
      unsigned char* const to = query.halves[chunk / 8] + (Lane::group() * 64 + row) * kRowBytes;
      Transform<T, Memory>::template convert_chunk<tile::F16, true>(to, (chunk % 8 ^ row % 8) * 16, codes[i]);
    }
    hopper::fence_shared();
    hopper::sync_at(kGroupBarrier + Lane::group(), 128);
  }

  /// Passes the tiles of a job in which this warpgroup has no rows.
  __device__ void skip_tiles(const Job& job, typename Memory::TileRings& ring) const {
    for (int n = 0; n < job.tiles(); ++n) {
      mainloop.await_keys(ring);
      Turns::await_turn();
      Turns::signal_next();
      mainloop.free_keys(ring);
      hopper::wait(&block.shared.v_full[ring.v.stage], ring.v.parity);
      mainloop.free_values(ring);
    }
  }

  static constexpr int kNone = -1;

  /// Takes one job after the other. Where there are three slots, a slot is given back a job later, when its rows have been read.
  __device__ __forceinline__ void run_alone() const {
    constexpr bool kLater = Memory::kQueries > 2;
    typename Memory::TileRings ring;
    JobRing jobs;
    int written = kNone;
    for (;; jobs.advance()) {
      hopper::wait(&block.shared.job_full[jobs.stage], jobs.parity);
      const Job& job = block.shared.jobs[jobs.stage];
      if (job.ends_all()) return;
      const Rows rows = block.rows_of(job.item.slice);
      Query& query = block.shared.query[jobs.stage % Memory::kQueries];
      if constexpr (kCodes && is_f16<T>)
        if (block.a.query.dtype == DType::fp8_e4m3fn && rows.first < rows.end) convert_query(query, job, rows);
      State state;
      if (rows.first >= rows.end)
        skip_tiles(job, ring);
      else if (job.plain)
        mainloop.template fold_job<true>(state, job, mainloop.scores.work_of(job), query, ring);
      else
        mainloop.template fold_job<false>(state, job, mainloop.scores.work_of(job), query, ring);
      if (kLater && written != kNone) epilogue.give_back_written(written);
      written = epilogue.close(state, jobs.stage) ? jobs.stage : kNone;
      if (!kLater && written != kNone) epilogue.give_back_written(written);
    }
  }

  /// True if no row of the warpgroup sees more than the first half of the job's first tile.
  __device__ bool sees_half(const Job& job, const Rows& rows) const {
    const KeyTileSpan span = key_tile<kKeys>(job, 0);
    const int first = rows.first - job.item.slice.row_begin, last = rows.end - 1 - job.item.slice.row_begin;
    return min(span.end, mainloop.scores.seen_end(job, first, last)) - span.first <= kKeys / 2;
  }

  /// Each job is begun before the one before it is closed, in the slot `open`.
  __device__ __forceinline__ void run_beside() const {
    typename Memory::TileRings ring;
    JobRing jobs;
    State state;
    Weights p = {};
    Work w = {};
    int open = kNone, written = kNone;  // slots; rows of `written` are being read
    bool half = false;                  // the rows see only half of the tile whose weights are in p
    bool pending = false;               // the weights in p belong to the open job and are not multiplied yet
    for (;; jobs.advance()) {
      if (written != kNone) epilogue.give_back_written(written);
      hopper::wait(&block.shared.job_full[jobs.stage], jobs.parity);
      const Job& job = block.shared.jobs[jobs.stage];
      const Query& query = block.shared.query[jobs.stage];
      const bool none = job.ends_all();
      const Rows rows = block.rows_of(job.item.slice);
      const bool mine = !none && rows.first < rows.end && job.tiles() > 0, plain = mine && job.plain;
      const Job* const before = pending ? &block.shared.jobs[open] : nullptr;
      Totals totals;
      bool empty = true;
      if (plain)
        totals = sees_half(job, rows)
                     ? mainloop.template begin_beside<kKeys / 2>(state, p, w, half, empty, job, query, ring, before)
                     : mainloop.template begin_beside<kKeys>(state, p, w, half, empty, job, query, ring, before);
      else if (pending)
        mainloop.template end_tiles<T>(state, p, *before, w, half, before->tiles() - 1, ring);
      written = open != kNone && epilogue.close(state, open) ? open : kNone;
      if (none) return;
      state = State{totals};
      open = jobs.stage, pending = mine;
      if (plain) {
        mainloop.template fold_tiles<true, T, true>(state, p, empty, half, job, w, 1, job.tiles(), query, ring);
      } else if (mine) {
        half = false;
        w = mainloop.scores.work_of(job);
        mainloop.template begin_alone<false, T>(state, p, empty, job, w, 0, job.tiles(), query, ring);
        mainloop.template fold_tiles<false, T, true>(state, p, empty, half, job, w, 1, job.tiles(), query, ring);
      } else {
        skip_tiles(job, ring);
      }
    }
  }

  __device__ __forceinline__ void run() const {
    if (Lane::group() == Memory::kGroups - 1) Turns::signal_next();  // the first turn is the first warpgroup's
    if constexpr (Memory::kBeside)
      run_beside();
    else
      run_alone();
    hopper::await_writes();
  }
};

}  // namespace quire::cuda::sm90::prefill
