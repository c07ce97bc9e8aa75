// Sums over the threads of one block, the same in any order of threads: integers only.
#pragma once

#include "backend/gpu/runtime.h"

namespace quire::gpu {

/// kThreads values in shared memory, twice: each step reads one half and writes the other.
template <class T, int kThreads>
struct BlockScan {
  static constexpr int kBytes = piece_bytes<T>(2 * kThreads);

  QUIRE_DEVICE explicit BlockScan(SharedArea& area) : values_(area.take<T>(2 * kThreads)) {}

  /// Sum of `mine` over the threads up to and including this one. Ends with every thread's result readable by `of`.
  QUIRE_DEVICE T inclusive(const T& mine) {
    const int t = thread_index();
    half_ = 1 - half_;  // somebody may still read the last scan's results in the other half
    values_[half_ * kThreads + t] = mine;
    block_barrier();
    for (int distance = 1; distance < kThreads; distance *= 2) {
      const T* from = values_ + half_ * kThreads;
      T sum = from[t];
      if (t >= distance) sum = from[t - distance] + sum;
      half_ = 1 - half_;
      values_[half_ * kThreads + t] = sum;
      block_barrier();
    }
    return of(t);
  }
  /// What inclusive() returned to thread t.
  QUIRE_DEVICE T of(int t) const { return values_[half_ * kThreads + t]; }
  QUIRE_DEVICE T total() const { return of(kThreads - 1); }

 private:
  T* values_;
  int half_ = 0;
};

}  // namespace quire::gpu
