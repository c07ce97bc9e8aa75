// SPDX-License-Identifier: Apache-2.0
// Shared memory, registers and threads of a decode block.
//
// kGroups consumer warpgroups multiply. For a piece of up to kRows score rows they take tiles in turn, and the first warpgroup
// reduces the results at the end of the piece. For a piece of more rows each warpgroup takes all tiles, with rows of its own
// (Job::by_rows). Producer warps copy keys and values. With one warpgroup a block fills half an SM; with several it fills an SM,
// and one producer warp copies keys and another one values.
#pragma once

#include <algorithm>
#include <type_traits>

#include "backend/cuda/hopper/instructions.h"
#include "backend/cuda/sm90/decode/job.h"
#include "backend/cuda/sm90/instance.h"
#include "plan/kernels/cuda_sm90.h"
#include "schedule/shares.h"

namespace quire::cuda::sm90::decode {

/// A position in a ring of kLength stages, in one register.
template <int kLength>
struct StageRing {
  int at = 0;  ///< position within two rounds of the ring
  __device__ int stage() const { return at < kLength ? at : at - kLength; }
  __device__ std::uint32_t parity() const { return at < kLength ? 0 : 1; }
  __device__ void advance(int by = 1) {
    at += by;
    if (at >= 2 * kLength) at -= 2 * kLength;
  }
  __device__ void skip(int by) { at = (at + by) % (2 * kLength); }
};

/// Tiles: PlainTiles, Fp8Tiles, PackedTiles or PackedFp8Tiles; kRows_: score rows for which a warpgroup has room.
template <typename Tiles_, int kRows_>
struct Memory {
  using Tiles = Tiles_;
  using Tile = typename Tiles::Tile;
  static constexpr int kDim = Tiles::kDim, kHalves = kDim / 64, kRows = kRows_;
  static constexpr int kHeads = Tiles::kHeads;
  static constexpr int kGroups = Tiles::template groups<kRows>(), kBlocks = Tiles::template blocks<kRows>();
  static constexpr bool kSlices = kRows > 8 * kHeads;  ///< a request may have several slices of score rows; else it has one
  static constexpr schedule::Rounding<std::int32_t> kShares =
      kSlices ? plan_detail::kSm90.wide_share
              : (Tiles::kElementBytes == 1 || kHeads > 1 ? plan_detail::kSm90.small_row_share : plan_detail::kSm90.narrow_share);
  static constexpr bool kByRows = kSlices && kGroups > 1;  ///< pieces may have rows for each warpgroup
  static constexpr int kProducerWarps = kGroups == 1 ? Tiles::kProducerWarps : 2;
  /// Each producer warp copies half of the boxes of keys and of values, because issuing one takes a warp 100 cycles. Where
  /// warpgroups take tiles in turn, keys of a tile are freed before values of the tile ahead of it: there one producer warp
  /// copies keys and the other one values.
  static constexpr bool kCopyBoth = kProducerWarps == 1 || kGroups == 1;
  /// Several warpgroups take registers from the producers. Only a whole warpgroup can give registers up.
  static constexpr bool kMoveRegisters = kGroups > 1;
  static constexpr int kConsumerThreads = 128 * kGroups;
  static constexpr int kThreads = kConsumerThreads + (kMoveRegisters ? 128 : 32 * kProducerWarps);
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8, kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = kRegisters + (kRegisters - kProducerRegisters) / kGroups / 8 * 8;
  static constexpr int kQueryBytes = 128;         ///< bytes of 64 dims of a query row
  static constexpr int kWeightBytes = 4 * kRows;  ///< bytes of a key's weights: high parts, then low parts
  static constexpr int kJobs = 2;                 ///< current piece, and the next
  static constexpr int kOthers = kGroups > 1 ? kGroups - 1 : 1;
  static constexpr int kEnds = kByRows ? kGroups : 1;          ///< warpgroups that finish rows
  static constexpr int kArrivals = kByRows ? 4 * kGroups : 4;  ///< arrivals that free a stage, however many warps use it

  /// Results of a warpgroup beyond the first for a piece whose tiles were taken in turn, or its rows of the query.
  struct Found {
    union {
      float out[kRows][kDim + 4];
      alignas(1024) Byte query[kHalves][kRows * kQueryBytes];
    };
    float max[kRows], sums[4][kRows];  ///< maximum of the warpgroup's keys, and a sum for each warp's
  };
  /// Narrow tiles: segments that a block completes are merged when its share is done. They are no more than the block's partial
  /// results.
  static constexpr bool kMergesLast = !kSlices;
  struct Unmerged {
    tile::Item item;
    Parts parts;
    int rows;
  };
  /// Place and factor of an output row.
  struct RowEnd {
    std::int64_t offset;
    float factor;
  };
  template <int kStages>
  struct SharedOf {
    alignas(1024) Tile k[kStages];
    Tile v[kStages];
    alignas(1024) Byte weights[kGroups][2][kTileKeys * kWeightBytes];  ///< two buffers for each warpgroup, used by turns
    alignas(1024) Byte query[kHalves][kRows * kQueryBytes];
    std::conditional_t<(kGroups > 1), Found, char> found[kOthers];  ///< unused where there is one warpgroup
    alignas(16) float2 states[kEnds][kRows];                        ///< maximum and sum of the rows that are finished
    RowEnd ends[kEnds][kRows];
    float maxima[kGroups][4][kRows];  ///< maximum for each warp's keys
    union {
      float sums[kEnds][4][kRows];      ///< sum for each warp's keys, at the end of a piece
      float query_units[kEnds][kRows];  ///< at the beginning of a piece: value of 1 in a scaled row of the query
    };
    Job jobs[kJobs];
    hopper::Barrier job_full[kJobs], job_free[kJobs];
    hopper::Barrier found_full[kOthers], found_free[kOthers];
    hopper::Barrier k_full[kStages], v_full[kStages], k_free[kStages], v_free[kStages];
    int last[kEnds];
    std::conditional_t<kMergesLast, Unmerged, char> unmerged[kPartialsOfBlock];
    WorkEntries work;
  };
  /// The largest number of stages that fits.
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
  using Ring = StageRing<kStages>;
  using JobRing = StageRing<kJobs>;

  /// Initialises all barriers, by one thread, before any other waits.
  __device__ static void init_barriers(Shared& shared) {
    for (int i = 0; i < kStages; ++i) {
      hopper::init_barrier(&shared.k_full[i], kCopyBoth ? kProducerWarps : 1);
      hopper::init_barrier(&shared.v_full[i], kCopyBoth ? kProducerWarps : 1);
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

  /// Gives a stage back: each warp that uses the tile, also for the warps that do not.
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

}  // namespace quire::cuda::sm90::decode
