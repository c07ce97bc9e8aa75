// SPDX-License-Identifier: Apache-2.0
// A record of what an executor does with the tasks of one run. The executor may be the caller's, and a task that it skips is
// output that nobody writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "quire/status.hpp"

namespace quire::cpu {

class RollCall {
 public:
  /// Allocates a byte per task and a cache line per thread; made() is false where there is no memory for them.
  RollCall(std::int64_t num_tasks, int num_threads) noexcept;
  bool made() const noexcept { return tasks_ != nullptr && threads_ != nullptr; }

  /// True: the task runs now, and finished() follows. False: the executor has no right to run it, and it must not run.
  bool begins(std::int64_t task, int thread) noexcept;
  void finished(std::int64_t task, int thread) noexcept;

  /// OK if every task ran to its end and none was refused; otherwise invalid_argument, beginning with "`call`: the executor".
  Status verdict(const char* call) const;

 private:
  enum class Misuse : int { none, no_such_task, no_such_thread, shared_thread, repeated };
  enum State : std::uint8_t { waiting, begun, done };
  struct alignas(64) Thread {
    std::atomic<bool> busy{false};
  };

  /// The first one is kept.
  bool refuse(Misuse misuse, std::int64_t task, int thread) noexcept;

  std::int64_t num_tasks_;
  int num_threads_;
  std::unique_ptr<std::atomic<std::uint8_t>[]> tasks_;
  std::unique_ptr<Thread[]> threads_;
  std::atomic<bool> refused_{false};
  Misuse misuse_ = Misuse::none;
  std::int64_t refused_task_ = 0;
  int refused_thread_ = 0;
};

}  // namespace quire::cpu
