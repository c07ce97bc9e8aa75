// What a block of decode.h has in shared memory, and which threads do what.
//
// kGroups warpgroups work, tile i of a piece being warpgroup i % kGroups's. Behind them a warp copies keys and values; where
// there are several warpgroups, so that one block fills a multiprocessor, one warp copies keys and another one values.
#pragma once

#include <algorithm>
#include <type_traits>

#include "backend/cuda/mma/finish.h"
#include "backend/cuda/mma/fold_tile.h"
#include "backend/cuda/sm90/hopper.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/shares.h"

namespace quire::cuda::sm90 {

/// A position in a ring of kLength stages, in one register.
template <int kLength>
struct StagesInTurn {
  int at = 0;  ///< of two rounds
  __device__ int stage() const { return at < kLength ? at : at - kLength; }
  __device__ std::uint32_t parity() const { return at < kLength ? 0 : 1; }
  __device__ void advance(int by = 1) {  // by <= 2 kLength
    at += by;
    if (at >= 2 * kLength) at -= 2 * kLength;
  }
  __device__ void skip(int by) { at = (at + by) % (2 * kLength); }
};

/// A piece as the warpgroups work on it. It stays in shared memory, as the loop over tiles has no registers to spare.
struct DecodeJob {
  std::int32_t first, end;              ///< tiles; none: the last piece was before
  std::int32_t whole_begin, whole_end;  ///< tiles within these positions hold cached keys that all rows see, and nothing else
  Parts parts;
  mma::Item item;
  mma::RowSpan span;
  mma::Logits logits;
};

__device__ inline void fill_job(DecodeJob& job, const gpu::AttendArgs& a, const Piece& piece, const Parts& parts) {
  job.first = piece.first, job.end = piece.end;
  job.parts = parts;
  job.item.lengths = piece.lengths;
  job.item.kv_head = piece.kv_head;
  job.item.slice.req = piece.req;
  job.item.slice.row_begin = 0;
  job.item.slice.row_end = piece.lengths.query_len * a.group;
  job.item.slice.num_parts = parts.count;
  job.span = mma::row_span(a, piece.lengths, 0, job.item.slice.row_end);
  job.whole_begin = job.span.full_begin, job.whole_end = min(job.span.full_end, piece.lengths.cached_len);
  const float scale = a.score.scale * a.k_scale.at(piece.kv_head, 1.0f);
  job.logits = {scale, a.score.soft_cap, scale * mma::kLog2e, a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr};
}

/// Tiles: PlainTiles or Fp8Tiles; kRows_: score rows that a tile of work has room for.
template <typename Tiles_, int kRows_>
struct DecodeMemory {
  using Tiles = Tiles_;
  using Tile = typename Tiles::Tile;
  static constexpr int kDim = Tiles::kDim, kHalves = kDim / 64, kRows = kRows_;
  static constexpr int kGroups = Tiles::template groups<kRows>(), kBlocks = Tiles::template blocks<kRows>();
  static constexpr int kCopyWarps = kGroups == 1 ? Tiles::kCopyWarps : 2;
  /// Several warpgroups take registers that the copying ones give up, which only a whole warpgroup can.
  static constexpr bool kMoveRegisters = kGroups > 1;
  static constexpr int kWorkers = 128 * kGroups, kThreads = kWorkers + (kMoveRegisters ? 128 : 32 * kCopyWarps);
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8, kCopyRegisters = 72;
  static constexpr int kWorkRegisters = kRegisters + (kRegisters - kCopyRegisters) / kGroups / 8 * 8;
  static constexpr int kQueryBytes = 128;         ///< of a row's 64 dims
  static constexpr int kWeightBytes = 4 * kRows;  ///< of a key: high parts, low parts
  static constexpr int kJobs = 2;                 ///< of the piece at hand, and of the next
  static constexpr int kOthers = kGroups > 1 ? kGroups - 1 : 1;

  /// What a warpgroup beyond the first has found out about a piece.
  struct Found {
    float max[kRows], sums[4][kRows];  ///< of each warp's keys
    float out[kRows][kDim + 4];
  };
  /// How a row goes to the output.
  struct RowEnd {
    std::int64_t offset;
    float factor;
  };
  template <int kStages>
  struct SharedOf {
    alignas(1024) Tile k[kStages];
    Tile v[kStages];
    alignas(1024) Byte weights[kGroups][2][kTileKeys * kWeightBytes];  ///< of the tiles of a warpgroup in turn
    alignas(1024) Byte query[kHalves][kRows * kQueryBytes];
    std::conditional_t<(kGroups > 1), Found, char> found[kOthers];  ///< where there is one warpgroup, nobody tells it anything
    alignas(16) float2 states[kRows];                               ///< of the rows that are finished: maximum, sum
    RowEnd ends[kRows];
    float maxima[kGroups][4][kRows];  ///< of each warp's keys
    float sums[4][kRows];             ///< of the first warpgroup
    DecodeJob jobs[kJobs];
    hopper::Barrier job_full[kJobs], job_free[kJobs];
    hopper::Barrier found_full[kOthers], found_free[kOthers];
    hopper::Barrier k_full[kStages], v_full[kStages], k_free[kStages], v_free[kStages];
    int last;
    Row row;
  };
  /// As many as there is room for.
  template <int kStages>
  static constexpr int most_stages() {
    if constexpr (kStages > 1 && sizeof(SharedOf<kStages>) > kMostBytes)
      return most_stages<kStages - 1>();
    else
      return kStages;
  }
  static constexpr int kMostBytes = 228 * 1024 / kBlocks / 1024 * 1024 - 1024, kMostStages = 12;
  static constexpr int kStages = most_stages<kMostStages>();
  static_assert(kStages >= 2);
  using Shared = SharedOf<kStages>;
  using Ring = StagesInTurn<kStages>;
  using JobRing = StagesInTurn<kJobs>;

  /// By one thread, before anybody waits.
  __device__ static void init_barriers(Shared& shared) {
    for (int i = 0; i < kStages; ++i) {
      hopper::init_barrier(&shared.k_full[i], 1), hopper::init_barrier(&shared.v_full[i], 1);
      hopper::init_barrier(&shared.k_free[i], 4), hopper::init_barrier(&shared.v_free[i], 4);
    }
    for (int i = 0; i < kJobs; ++i) {
      hopper::init_barrier(&shared.job_full[i], 1);
      hopper::init_barrier(&shared.job_free[i], 4 * kGroups);
    }
    for (int i = 0; i < kOthers; ++i) {
      hopper::init_barrier(&shared.found_full[i], 4);
      hopper::init_barrier(&shared.found_free[i], 4);
    }
    hopper::fence_barrier_init();
  }

  /// Each warp arrives once.
  __device__ static void arrive_warp(hopper::Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) hopper::arrive(&barrier);
  }
};

}  // namespace quire::cuda::sm90
