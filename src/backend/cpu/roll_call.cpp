// SPDX-License-Identifier: Apache-2.0
// Judging an executor by what it did. Flags only change from waiting to begun to done, so whoever changes one first has the task.
#include "backend/cpu/roll_call.h"

#include <new>

#include "text/formatted.h"

namespace quire::cpu {

RollCall::RollCall(std::int64_t num_tasks, int num_threads) noexcept
    : num_tasks_(num_tasks),
      num_threads_(num_threads),
      tasks_(new(std::nothrow) std::atomic<std::uint8_t>[static_cast<std::size_t>(num_tasks)] {}),
      threads_(new(std::nothrow) Thread[static_cast<std::size_t>(num_threads)]) {}

bool RollCall::refuse(Misuse misuse, std::int64_t task, int thread) noexcept {
  if (refused_.exchange(true, std::memory_order_relaxed)) return false;
  misuse_ = misuse;
  refused_task_ = task;
  refused_thread_ = thread;
  return false;
}

bool RollCall::begins(std::int64_t task, int thread) noexcept {
  if (task < 0 || task >= num_tasks_) return refuse(Misuse::no_such_task, task, thread);
  if (thread < 0 || thread >= num_threads_) return refuse(Misuse::no_such_thread, task, thread);
  // A thread's scratch is handed from task to task: acquire sees what the last one left there.
  std::atomic<bool>& busy = threads_[static_cast<std::size_t>(thread)].busy;
  if (busy.exchange(true, std::memory_order_acquire)) return refuse(Misuse::shared_thread, task, thread);
  std::uint8_t expected = waiting;
  if (tasks_[static_cast<std::size_t>(task)].compare_exchange_strong(expected, begun, std::memory_order_relaxed)) return true;
  busy.store(false, std::memory_order_release);
  return refuse(Misuse::repeated, task, thread);
}

void RollCall::finished(std::int64_t task, int thread) noexcept {
  tasks_[static_cast<std::size_t>(task)].store(done, std::memory_order_release);
  threads_[static_cast<std::size_t>(thread)].busy.store(false, std::memory_order_release);
}

Status RollCall::verdict(const char* call) const {
  const auto misused = [call](std::string text) {
    return Status(Code::invalid_argument, formatted("{}: the executor {}; the result is not complete", call, text));
  };
  switch (misuse_) {
    case Misuse::none: break;
    case Misuse::no_such_task: return misused(formatted("ran task {}, expected 0 to {}", refused_task_, num_tasks_ - 1));
    case Misuse::no_such_thread:
      return misused(formatted("ran task {} as thread {}, expected 0 to num_threads - 1 = {}", refused_task_, refused_thread_,
                               num_threads_ - 1));
    case Misuse::shared_thread:
      return misused(formatted("ran task {} as thread {} while that thread ran another, expected one at a time", refused_task_,
                               refused_thread_));
    case Misuse::repeated:
      return misused(formatted("ran task {} of {} more than once, expected every task once", refused_task_, num_tasks_));
  }
  for (std::int64_t task = 0; task < num_tasks_; ++task) {
    const std::uint8_t state = tasks_[static_cast<std::size_t>(task)].load(std::memory_order_acquire);
    if (state == waiting) return misused(formatted("did not run task {} of {}, expected every task once", task, num_tasks_));
    if (state == begun) return misused(formatted("returned before task {} of {} was done", task, num_tasks_));
  }
  return {};
}

}  // namespace quire::cpu
