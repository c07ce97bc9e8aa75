// SPDX-License-Identifier: Apache-2.0
// Threads that do the same thing at the same time, for ceilings only: nothing of the thread pool under test is used.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace quire::bench_detail {

/// Seconds of the fastest of `trials` trials of work(thread, trial). A trial starts on all threads together and ends with the
/// last; the fastest one was disturbed least. Throws std::system_error if a thread cannot be started: fewer would be another
/// measurement.
template <typename Work>
double fastest_trial(int threads, int trials, Work&& work) {
  using Clock = std::chrono::steady_clock;
  const auto size = static_cast<std::size_t>(threads) * static_cast<std::size_t>(trials);
  std::vector<Clock::time_point> begins(size), ends(size);
  std::atomic<int> arrived{0};
  std::atomic<bool> called_off{false};
  const auto member = [&](int thread) {
    for (int trial = 0; trial < trials; ++trial) {
      arrived.fetch_add(1, std::memory_order_acq_rel);
      for (int spin = 0; arrived.load(std::memory_order_acquire) < threads * (trial + 1); ++spin) {
        if (called_off.load(std::memory_order_relaxed)) return;
        if (spin > 2000) std::this_thread::yield();
      }
      const auto at = static_cast<std::size_t>(trial * threads + thread);
      begins[at] = Clock::now();
      work(thread, trial);
      ends[at] = Clock::now();
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (int t = 1; t < threads; ++t) others.emplace_back(member, t);
    } catch (...) {
      called_off = true;
      throw;
    }
    member(0);
  }
  double fastest = 1e30;
  for (int trial = 0; trial < trials; ++trial) {
    const auto first = static_cast<std::size_t>(trial * threads);
    Clock::time_point begin = begins[first], end = ends[first];
    for (std::size_t i = first; i < first + static_cast<std::size_t>(threads); ++i) {
      begin = std::min(begin, begins[i]);
      end = std::max(end, ends[i]);
    }
    fastest = std::min(fastest, std::chrono::duration<double>(end - begin).count());
  }
  return fastest > 0 ? fastest : 1e-9;
}

}  // namespace quire::bench_detail
