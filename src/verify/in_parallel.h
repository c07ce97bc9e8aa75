// A loop over independent work on a few threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace quire::conformance {

/// Runs work(i) for every i of [0, n), which one thread takes after the other.
template <typename Work>
void in_parallel(std::size_t n, int num_threads, Work&& work) {
  std::atomic<std::size_t> next{0};
  const auto worker = [&] {
    for (std::size_t i = next++; i < n; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  for (int t = 1; t < num_threads; ++t) helpers.emplace_back(worker);
  worker();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace quire::conformance
