// A loop over independent work on a few threads.
#pragma once

#include <algorithm>
#include <cstddef>

#include "threads/on_threads.h"

namespace quire::conformance {

/// Runs work(i) for every i of [0, n), which one thread takes after the other.
template <typename Work>
void in_parallel(std::size_t n, int num_threads, Work&& work) {
  threads::for_each_index(n, static_cast<std::size_t>(std::max(1, num_threads)), work);
}

}  // namespace quire::conformance
