// SPDX-License-Identifier: Apache-2.0
// Running a lambda as an Executor's tasks: each exactly once, or the call fails.
#pragma once

#include <cstdint>

#include "backend/cpu/roll_call.h"
#include "quire/executor.hpp"
#include "quire/interrupt.hpp"
#include "text/formatted.h"

namespace quire::cpu {

/// body(index, thread) once for every index in [0, count); inline if there is nothing to share. `call` names the call in errors.
/// An executor that does anything else is an invalid_argument: a task that it repeats runs once all the same, and one that it
/// gives a thread number it does not have, or that is in use, does not run. Throws Interrupted when the calling thread's
/// InterruptScope ends; no task begins after that.
template <typename Body>
Status parallel_for(const char* call, Executor& executor, std::int64_t count, Body& body) {
  const int num_threads = executor.num_threads();
  if (num_threads < 1 || num_threads > kMaxThreads)
    return {Code::invalid_argument,
            formatted("{}: the executor has {} threads, expected 1 to {}", call, num_threads, kMaxThreads)};
  if (count <= 1 || num_threads == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      end_if_interrupted();
      body(i, 0);
    }
    end_if_interrupted();
    return {};
  }
  struct Run {
    RollCall roll_call;
    Body& body;
    InterruptScope* scope;
  } run{RollCall(count, num_threads), body, InterruptScope::current()};
  if (!run.roll_call.made()) return {Code::out_of_memory, formatted("{}: no memory for the flags of {} tasks", call, count)};
  executor.run(
      count,
      [](void* context, std::int64_t index, int thread) {
        Run& r = *static_cast<Run*>(context);
        if (r.scope != nullptr && r.scope->ended()) return;
        if (!r.roll_call.begins(index, thread)) return;
        r.body(index, thread);
        r.roll_call.finished(index, thread);
      },
      &run);
  end_if_interrupted();
  return run.roll_call.verdict(call);
}

}  // namespace quire::cpu
