// SPDX-License-Identifier: Apache-2.0
// A system that grants no thread, or only a few, as long as one of these lives.
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace quire::test {

/// New threads ask for a stack of this size.
class StackSize {
 public:
  explicit StackSize(std::size_t bytes) {
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, bytes);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }
  ~StackSize() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  StackSize(const StackSize&) = delete;
  StackSize& operator=(const StackSize&) = delete;

 private:
  pthread_attr_t before_;
};

/// A stack that no machine has.
class NoMoreThreads {
  StackSize huge_{std::size_t{1} << 46};
};

/// Address space for the stacks of `count` threads at a time, and for what they do.
class FewThreads {
 public:
  explicit FewThreads(std::size_t count) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    rlimit few = before_;
    few.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + count * kStack + kStack / 2;
    setrlimit(RLIMIT_AS, &few);
  }
  ~FewThreads() { setrlimit(RLIMIT_AS, &before_); }
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;

 private:
  static constexpr std::size_t kStack = std::size_t{4} << 30;
  StackSize large_{kStack};
  rlimit before_{};
};

}  // namespace quire::test
