// SPDX-License-Identifier: Apache-2.0
// Starting and joining: std::jthread joins whatever happens, and nothing leaves a thread but through `error`.
#include "threads/on_threads.h"

#include <exception>
#include <vector>

namespace quire::threads {

void on_threads(std::size_t num_threads, const std::function<void()>& run) {
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;
  const auto guarded = [&]() noexcept {
    try {
      run();
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (std::size_t i = 1; i < num_threads; ++i) helpers.emplace_back(guarded);
    } catch (const std::exception&) {
      num_threads = helpers.size() + 1;  // the system grants no more, be it threads or memory
    }
    guarded();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace quire::threads
