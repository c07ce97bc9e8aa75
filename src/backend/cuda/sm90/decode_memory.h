// SPDX-License-Identifier: Apache-2.0
// What a block of decode.h has in shared memory, and which threads do what.
//
// kGroups warpgroups work. Of a piece of up to kRows score rows they take tiles in turn, and join what they found at its end; of
// one of more rows each takes all tiles, with rows of its own (DecodeJob::by_rows). Behind them a warp copies keys and values;
// where there are several warpgroups, so that one block fills a multiprocessor, one warp copies keys and another one values.
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
  std::int32_t end_in_tiles;            ///< keys from here on are in no tile
  std::int32_t turn;                    ///< the warpgroup whose turn the first tile is
  bool by_rows;                         ///< each warpgroup takes all tiles, and kRows score rows
  bool fresh_in_tiles;                  ///< this step's rows overwrite rows of tiles; else they are folded one by one
  Parts parts;
  mma::Item item;
  mma::RowSpan span;
  mma::Logits logits;
};

/// rows: that a warpgroup has room for. same_type: caches have the type of this step's rows, which stand for themselves in a
/// tile unless the cache has scales. With parts of fixed size, which warpgroup takes a tile depends on its position alone: so do
/// the bits of a row then.
template <bool kSlices>
__device__ inline void fill_job(DecodeJob& job, const gpu::AttendArgs& a, const Pieces<kSlices>& walk, const Piece& piece,
                                int rows, bool same_type) {
  const RowSlice& slice = walk.slice();
  const Parts parts = walk.parts_of(piece);
  job.first = piece.first, job.end = piece.end;
  job.turn = a.work.split_keys > 0 ? piece.first % 2 : 0;
  job.by_rows = slice.row_end - slice.row_begin > rows;
  job.fresh_in_tiles = same_type && a.k_scale.data == nullptr && a.v_scale.data == nullptr;
  job.parts = parts;
  job.item.lengths = walk.lengths();
  job.item.kv_head = walk.kv_head();
  job.item.slice.req = walk.req();
  job.item.slice.row_begin = slice.row_begin;
  job.item.slice.row_end = slice.row_end;
  job.item.slice.num_parts = parts.count;
  job.span = span_of<kSlices>(a, walk.lengths(), slice);
  job.whole_begin = job.span.full_begin, job.whole_end = min(job.span.full_end, walk.lengths().cached_len);
  job.end_in_tiles = job.fresh_in_tiles ? job.span.any_end : walk.lengths().cached_len;
  const float scale = a.score.scale * a.k_scale.at(walk.kv_head(), 1.0f) * a.q_scale.at(walk.kv_head(), 1.0f);
  job.logits = {scale, a.score.soft_cap, scale * mma::kLog2e, a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr};
}

/// Tiles: PlainTiles or Fp8Tiles; kRows_: score rows that a warpgroup has room for.
template <typename Tiles_, int kRows_>
struct DecodeMemory {
  using Tiles = Tiles_;
  using Tile = typename Tiles::Tile;
  static constexpr int kDim = Tiles::kDim, kHalves = kDim / 64, kRows = kRows_;
  static constexpr int kGroups = Tiles::template groups<kRows>(), kBlocks = Tiles::template blocks<kRows>();
  static constexpr bool kSlices = kRows > 8;               ///< of the score rows of a request; else it has one
  static constexpr bool kByRows = kSlices && kGroups > 1;  ///< pieces may have rows for each warpgroup
  static constexpr int kCopyWarps = kGroups == 1 ? Tiles::kCopyWarps : 2;
  /// Both copy keys and values, half of the boxes each (issuing one takes a warp 100 cycles); or, where warpgroups take tiles in
  /// turn and free keys of one before values of the one ahead of it, one copies keys and the other one values.
  static constexpr bool kCopyBoth = kCopyWarps == 1 || kGroups == 1;
  /// Several warpgroups take registers that the copying ones give up, which only a whole warpgroup can.
  static constexpr bool kMoveRegisters = kGroups > 1;
  static constexpr int kWorkers = 128 * kGroups, kThreads = kWorkers + (kMoveRegisters ? 128 : 32 * kCopyWarps);
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8, kCopyRegisters = 56;
  static constexpr int kWorkRegisters = kRegisters + (kRegisters - kCopyRegisters) / kGroups / 8 * 8;
  static constexpr int kQueryBytes = 128;         ///< of a row's 64 dims
  static constexpr int kWeightBytes = 4 * kRows;  ///< of a key: high parts, low parts
  static constexpr int kJobs = 2;                 ///< of the piece at hand, and of the next
  static constexpr int kOthers = kGroups > 1 ? kGroups - 1 : 1;
  static constexpr int kEnds = kByRows ? kGroups : 1;          ///< warpgroups that finish rows
  static constexpr int kArrivals = kByRows ? 4 * kGroups : 4;  ///< that free a stage, however many warps use it

  /// What a warpgroup beyond the first has found out about a piece whose tiles were taken in turn, or its rows of the query.
  struct Found {
    union {
      float out[kRows][kDim + 4];
      alignas(1024) Byte query[kHalves][kRows * kQueryBytes];
    };
    float max[kRows], sums[4][kRows];  ///< of each warp's keys
  };
  /// Narrow tiles: segments that a block completes are merged when its share is done. There are no more than it has places.
  static constexpr bool kMergesLast = !kSlices;
  struct Unmerged {
    mma::Item item;
    Parts parts;
    int rows;
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
    alignas(16) float2 states[kEnds][kRows];                        ///< of the rows that are finished: maximum, sum
    RowEnd ends[kEnds][kRows];
    float maxima[kGroups][4][kRows];  ///< of each warp's keys
    union {
      float sums[kEnds][4][kRows];      ///< likewise, at the end of a piece
      float query_units[kEnds][kRows];  ///< at its beginning: what 1 in a row of the query stands for, where rows are scaled
    };
    DecodeJob jobs[kJobs];
    hopper::Barrier job_full[kJobs], job_free[kJobs];
    hopper::Barrier found_full[kOthers], found_free[kOthers];
    hopper::Barrier k_full[kStages], v_full[kStages], k_free[kStages], v_free[kStages];
    int last[kEnds];
    std::conditional_t<kMergesLast, Unmerged, char> unmerged[kPlacesOfBlock];
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
      hopper::init_barrier(&shared.k_full[i], kCopyBoth ? kCopyWarps : 1);
      hopper::init_barrier(&shared.v_full[i], kCopyBoth ? kCopyWarps : 1);
      hopper::init_barrier(&shared.k_free[i], kArrivals), hopper::init_barrier(&shared.v_free[i], kArrivals);
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

  /// Gives a stage back: each warp that uses the tile, for those that do not.
  __device__ static void free_stage(hopper::Barrier& barrier, bool by_rows) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) hopper::arrive(&barrier, !kByRows || by_rows ? 1 : kGroups);
  }
  /// Each warp arrives once.
  __device__ static void arrive_warp(hopper::Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) hopper::arrive(&barrier);
  }
};

}  // namespace quire::cuda::sm90
