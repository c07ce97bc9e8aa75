// SPDX-License-Identifier: Apache-2.0
// Shared memory, registers and threads of a prefill block.
#pragma once

#include "backend/cuda/hopper/instructions.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/prefill/masks.h"
#include "backend/cuda/tile/element.h"
#include "plan/kernels/cuda_sm90.h"

namespace quire::cuda::sm90::prefill {

/// A position in a ring of kLength stages.
template <int kLength>
struct StageRing {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kLength) stage = 0, parity ^= 1;
  }
};

/// Named barriers of a block: kTurnBarrier + g and kGroupBarrier + g are of warpgroup g, one of at most three. 0 is
/// __syncthreads().
constexpr int kConsumersBarrier = 1, kTurnBarrier = 2, kGroupBarrier = kTurnBarrier + 3;

/// Content of the cache: rows of 16-bit dims or of fp8 codes, or either packed (packed_layout.h).
enum class CacheKind { rows, codes, packed, packed_codes };
constexpr bool holds_codes(CacheKind kind) { return kind == CacheKind::codes || kind == CacheKind::packed_codes; }
constexpr bool is_packed(CacheKind kind) { return kind == CacheKind::packed || kind == CacheKind::packed_codes; }

/// kDim_: head_dim of Q and K; kValueDim_: of V and the output. kMasks_: masks of any kind; otherwise rows are
/// causal and stand at the end of their keys, or see every key. kTall: three consumer warpgroups. fp8 codes are copied into
/// stages of their own, from which the transform warps make tiles of 16 bits.
template <int kDim_, CacheKind kCache, int kValueDim_ = kDim_, bool kMasks_ = false, bool kTall = false>
struct Memory {
  static constexpr bool kMasks = kMasks_;
  using Job = std::conditional_t<kMasks, MaskedJob, prefill::Job>;
  static constexpr int kDim = kDim_, kHalves = kDim / 64, kValueDim = kValueDim_;
  /// The blocks of a pair have the same score rows, and half of the output's dims each: registers hold no more.
  static constexpr bool kSplitsValues = kValueDim > kMostOutDims;
  static constexpr int kOutDim = kSplitsValues ? kValueDim / kPair : kValueDim;  ///< dims of V and output in a block
  static constexpr int kOutHalves = kOutDim / 64;
  static constexpr bool kCodes = holds_codes(kCache), kPacked = is_packed(kCache);
  static constexpr plan_detail::PrefillTile kTile = plan_detail::Sm90Tuning::prefill_tile(kDim, kTall);
  static constexpr int kGroups = kTile.groups, kRows = kTile.rows(), kKeys = kTile.keys;
  /// Tall tiles have room for three stages, which took 2 % less time than two (H100, 2026-11-26).
  static constexpr int kStages = kDim > 256 ? 1 : kTall ? 3 : 2;
  /// Slots for queries and for jobs: with three, one is being closed, one worked on, and one on its way. With fewer queries than
  /// jobs, the next job's keys are copied before its query. Head_dim 256 has one job: a second made 16 prompts of 1k 2.5 % slower
  /// (H100, 2026-11-26).
  static constexpr int kQueries = kDim > 128 || (kCodes && kDim == 128) ? 1 : kCodes ? 2 : 3;
  static constexpr int kJobs = kCodes || (kDim > 128 && kDim != 256) ? 2 : kQueries;
  // Warpgroups: two or three that work, then one that copies. Codes are converted by one more, or, where products take more
  // registers than four warpgroups may begin with (head_dim 256), by three warps of that one.
  static constexpr bool kFour = kCodes && kDim < 256;
  static constexpr int kConsumerThreads = 128 * kGroups, kThreads = kConsumerThreads + (kFour ? 256 : 128);
  /// Producer warps that give items back; for 16-bit caches one more warp draws them.
  static constexpr int kProducerWarps = kCodes && !kFour ? 1 : 3, kTransformWarps = kFour ? 4 : kCodes ? 3 : 0;
  static constexpr int kFirstTransformThread =
      kConsumerThreads + (kFour ? 128 : 32 * kProducerWarps);  ///< the first of their threads
  // A block deals out the registers that all its threads have at first: 168 each, or 128 where there are four warpgroups.
  static constexpr int kProducerRegisters = kTall ? 32 : kCodes && kDim != 128 ? 56 : 40;
  static constexpr int kTransformRegisters = kFour ? 56 : kProducerRegisters;
  static constexpr int kConsumerRegisters = kTall ? 160 : !kCodes ? 232 : kDim == 64 ? 200 : kDim == 128 ? 208 : 224;
  static constexpr int kAllRegisters = kProducerRegisters + kGroups * kConsumerRegisters + (kFour ? kTransformRegisters : 0);
  static_assert(kAllRegisters <= (kThreads == 512 ? 4 * 128 : 3 * 168));
  static constexpr int kRowBytes = 128;  ///< bytes of a row in a 64-dim half
  // Codes: boxes of up to 128 dims.
  static constexpr int kBoxDims = kDim < 128 ? kDim : 128, kBoxes = kDim / kBoxDims;
  static constexpr int kCodeStages = kDim == 256 ? 1 : 2;  ///< stages of K's codes, and as many of V's

  template <int kHalvesOfTile>
  struct TileOf {
    unsigned char halves[kHalvesOfTile][kKeys * kRowBytes];
  };
  using Tile = TileOf<kHalves>;
  using ValueTile = TileOf<kOutHalves>;
  struct Query {
    unsigned char halves[kHalves][kRows * kRowBytes];  ///< the output is staged here at the end of an item
  };
  static_assert(kOutDim <= kDim && ((kOutDim == kDim && !kMasks) || kCache == CacheKind::rows));
  struct CodeTile {
    unsigned char boxes[kBoxes][kKeys * kBoxDims];
  };
  struct CodeStages {
    CodeTile k[kCodeStages], v[kCodeStages];
  };
  struct CodeBarriers {
    hopper::Barrier k_full[kCodeStages], k_free[kCodeStages], v_full[kCodeStages], v_free[kCodeStages];
  };
  struct Nothing {};
  struct Shared {
    alignas(1024) Query query[kQueries];
    Tile k[kStages];
    ValueTile v[kStages];
    [[no_unique_address]] std::conditional_t<kCodes, CodeStages, Nothing> codes;
    Job jobs[kJobs];
    [[no_unique_address]] std::conditional_t<kMasks, RowKeys[kRows], Nothing> row_keys;  ///< keys of each row of the current job
    hopper::Barrier job_known[kJobs], job_full[kJobs], job_free[kJobs];                  ///< full: with its query
    hopper::Barrier k_full[kStages], k_free[kStages], v_full[kStages], v_free[kStages];
    [[no_unique_address]] std::conditional_t<kCodes, CodeBarriers, Nothing> code_barriers;
    hopper::Barrier draw_next;          ///< few tiles of the current item are left to copy: the next item is drawn
    hopper::Barrier index_full[kJobs];  ///< the second block of a pair may read the index
    hopper::Barrier index_free[kJobs];  ///< the second block has read the previous index
    int index[kJobs];
    int num_items;  ///< length of the item list; the thread that draws has no register for it
    int last;
    float zero;
    int group_inverse;  ///< ceil(2^16 / group): for n < 512, n / group is n * group_inverse / 2^16
  };
  static_assert(sizeof(Shared) <= 227 * 1024);

  /// Jobs are begun before the job before them is closed: there are slots for their queries, and all tiles have the same types.
  /// Tall tiles have no registers for it: weights of the one job would stand beside the output of the other.
  static constexpr bool kBeside = !kCodes && kQueries > 1 && !kTall;

  using Ring = StageRing<kStages>;
  struct TileRings {
    Ring k, v;
  };
  using CodeRing = StageRing<kCodeStages>;
  using JobRing = StageRing<kJobs>;

  __device__ static void init_barriers(Shared& shared) {
    const auto init = [](hopper::Barrier& barrier, int arrivals) { hopper::init_barrier(&barrier, arrivals); };
    for (int i = 0; i < kJobs; ++i) {
      init(shared.job_known[i], 1), init(shared.job_full[i], 1);
      init(shared.job_free[i], kConsumerThreads / 32 + kProducerWarps + kTransformWarps);
      init(shared.index_full[i], 1), init(shared.index_free[i], 1);
    }
    init(shared.draw_next, 1);
    for (int i = 0; i < kStages; ++i) {
      init(shared.k_full[i], kCodes ? kTransformWarps : 1), init(shared.v_full[i], kCodes ? kTransformWarps : 1);
      init(shared.k_free[i], (kCodes ? 1 : kPair) * kConsumerThreads / 32),
          init(shared.v_free[i], (kCodes || kSplitsValues ? 1 : kPair) * kConsumerThreads / 32);
    }
    if constexpr (kCodes)
      for (int i = 0; i < kCodeStages; ++i) {
        init(shared.code_barriers.k_full[i], 1), init(shared.code_barriers.v_full[i], 1);
        init(shared.code_barriers.k_free[i], kPair * kTransformWarps),
            init(shared.code_barriers.v_free[i], kPair * kTransformWarps);
      }
  }
};

/// One arrival for each warp.
__device__ inline void free_in_block(hopper::Barrier& barrier) {
  if (threadIdx.x % 32 == 0) hopper::arrive(&barrier);
}
/// One arrival for each warp, in both blocks of a pair.
__device__ inline void free_in_pair(hopper::Barrier& barrier) {
  if (threadIdx.x % 32 < kPair) hopper::arrive_in_cluster(&barrier, threadIdx.x % 32);
}

}  // namespace quire::cuda::sm90::prefill
