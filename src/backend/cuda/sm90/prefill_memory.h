// What a block of prefill.h has in shared memory, and who has how many threads and registers.
#pragma once

#include "backend/cuda/mma/element.h"
#include "backend/cuda/sm90/hopper.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/prefill_job.h"

namespace quire::cuda::sm90 {

/// A position in a ring of kLength stages.
template <int kLength>
struct StageRing {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kLength) stage = 0, parity ^= 1;
  }
};

template <int kDim_>
struct PrefillMemory {
  static constexpr int kDim = kDim_, kHalves = kDim / 64;
  static constexpr int kGroups = kPrefillGroups, kRows = kPrefillBlockRows, kKeys = prefill_keys(kDim);
  static constexpr int kStages = 2, kJobs = kDim == 256 ? 1 : 2;
  static constexpr int kWorkers = 128 * kGroups, kThreads = kWorkers + 128;
  static constexpr int kCopyRegisters = 40, kWorkRegisters = 232;
  static constexpr int kRowBytes = 128;  ///< of a 64-dim half

  struct Tile {
    unsigned char halves[kHalves][kKeys * kRowBytes];
  };
  struct Query {
    unsigned char halves[kHalves][kRows * kRowBytes];  ///< at the end of an item: its output
  };
  struct Shared {
    alignas(1024) Query query[kJobs];
    Tile k[kStages], v[kStages];
    PrefillJob jobs[kJobs];
    hopper::Barrier job_known[kJobs], job_full[kJobs], job_free[kJobs];  ///< full: its query is there, too
    hopper::Barrier k_full[kStages], k_free[kStages], v_full[kStages], v_free[kStages];
    hopper::Barrier index_full[kJobs];  ///< of the pair's second block
    int index[kJobs];
    int last;
    float zero;
  };

  using Ring = StageRing<kStages>;
  using JobRing = StageRing<kJobs>;
};

}  // namespace quire::cuda::sm90
