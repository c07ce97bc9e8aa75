// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of one block, the same in any order of threads: integers only.
#pragma once

#include "backend/gpu/runtime.h"

namespace quire::gpu {

/// A count that stops at kMost instead of overflowing, so that a sum of any counts can be compared with a capacity: addition is
/// associative all the same.
struct Count {
  static constexpr std::uint32_t kMost = 0x7FFFFFFFu;
  std::uint32_t value = 0;

  QUIRE_DEVICE static Count of(std::int64_t n) { return {n < kMost ? static_cast<std::uint32_t>(n) : kMost}; }
  QUIRE_DEVICE Count operator+(Count o) const { return {value + o.value < kMost ? value + o.value : kMost}; }
  QUIRE_DEVICE bool fits(std::int32_t room) const { return value < kMost && value <= static_cast<std::uint32_t>(room); }
};

/// Prefix sums over kThreads threads; T has T + T and T from(lane), the value of another lane of the wave.
template <class T, int kThreads>
class BlockScan {
  static constexpr int kMostWaves = kThreads / 32;

 public:
  static constexpr int kBytes = piece_bytes<T>(2 * kMostWaves);

  QUIRE_DEVICE explicit BlockScan(SharedArea& area) : waves_(area.take<T>(2 * kMostWaves)) {}

  /// Sum of `mine` over the threads before this one. One barrier.
  QUIRE_DEVICE T exclusive(const T& mine) {
    const int lane = thread_index() % wave_size(), wave = thread_index() / wave_size();
    T sum = mine;
    for (int distance = 1; distance < wave_size(); distance *= 2) {
      const T other = sum.from(lane < distance ? lane : lane - distance);
      if (lane >= distance) sum = other + sum;
    }
    half_ = 1 - half_;  // somebody may still read the last scan's sums in the other half
    T* const sums = waves_ + half_ * kMostWaves;
    if (lane == wave_size() - 1) sums[wave] = sum;
    block_barrier();
    T before{};
    total_ = T{};
    for (int w = 0; w < kThreads / wave_size(); ++w) {
      if (w == wave) before = total_;
      total_ = total_ + sums[w];
    }
    const T of_the_wave = sum.from(lane > 0 ? lane - 1 : 0);
    return lane > 0 ? before + of_the_wave : before;
  }
  /// Total of the last scan.
  QUIRE_DEVICE T total() const { return total_; }

 private:
  T* waves_;
  T total_{};
  int half_ = 0;
};

}  // namespace quire::gpu
