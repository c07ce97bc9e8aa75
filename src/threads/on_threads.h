// SPDX-License-Identifier: Apache-2.0
// Independent work on a few threads that live as long as the call. Everybody but the kernels uses this; they have the caller's
// Executor.
//
// The process never ends here: an exception waits until every thread has ended, and where the system grants fewer threads than
// asked, those that it grants and the caller share the work.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>

#include "quire/interrupt.hpp"

namespace quire::threads {

/// Cores that this process may use, at least 1.
inline std::size_t available() { return std::max(1u, std::thread::hardware_concurrency()); }

/// A number of threads that a caller named.
inline std::size_t at_least_one(int num_threads) { return static_cast<std::size_t>(std::max(1, num_threads)); }

/// run() on the calling thread and on up to num_threads - 1 others at the same time; returns when all have. The first exception
/// is thrown again here. All of them work for the calling thread's InterruptScope.
void on_threads(std::size_t num_threads, const std::function<void()>& run);

/// work(i) once for every i in [0, count), each by the next free thread. No call of work() begins after an exception; the end of
/// the calling thread's InterruptScope is one.
template <typename Work>
void for_each_index(std::size_t count, std::size_t num_threads, Work&& work) {
  std::atomic<std::size_t> next{0};
  on_threads(std::min(count, num_threads), [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) {
        end_if_interrupted();
        work(i);
      }
    } catch (...) {
      next = count;
      throw;
    }
  });
}

/// Runs work(index) for all indices, on every core.
template <typename Work>
void for_each_index(std::size_t count, Work&& work) {
  for_each_index(count, available(), work);
}

}  // namespace quire::threads
