// SPDX-License-Identifier: Apache-2.0
// Calls of several plans (cascades, key lists), run where their arrays are.
#pragma once

#include <algorithm>
#include <vector>

#include "deferred.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "quire/workspace.hpp"
#include "without_gil.hpp"
#include "workspace.hpp"

namespace quire_python {

/// How such a call runs, as its caller said.
struct Asked {
  nb::handle workspace, stream, wait;
  bool prepared = false;
  bool only_prepare = false;
};

/// Settings of a plan that every plan() takes, by name.
inline quire::PlanSettings settings_given(const Arguments& given) {
  return {
      .kernel = given.text("kernel", ""),
      .batch_invariant = given.flag("batch_invariant", false),
      .exact_weights = given.flag("exact_weights", false),
      .num_threads = static_cast<int>(std::clamp<std::int64_t>(given.integer("num_threads").value_or(0), -1, kMaxThreads + 1)),
      .max_query_len = given.integer("max_query_len").value_or(0)};
}

/// What such a call may do with a plan and the rest of `Args`.
template <typename... Args>
struct Steps {
  using Step = quire::Status (*)(const Args&..., std::span<std::byte>, const quire::AttendOptions&);
  Step prepare, attend, status;
};

/// Runs a step of a call. On a GPU without waiting, what the device finds is raised by the next call or synchronize(), without
/// the rule.
template <typename... Args, typename Plan>
void run_planned(const Steps<Args...>& steps, const ArrayRef& query, const Asked& asked, const Plan& plan, const auto&... rest) {
  const auto run = [&](std::span<std::byte> bytes, const quire::AttendOptions& how) {
    return (asked.only_prepare ? steps.prepare : steps.attend)(plan, rest..., bytes, how);
  };
  const std::size_t size = quire::workspace_bytes(plan);
  if (query.view.memory == quire::Memory::cpu) {
    static thread_local quire::Workspace own;
    const ArrayRef given = import_workspace(asked.workspace);
    const std::span<std::byte> bytes = given ? bytes_of(given) : own.at_least(size);
    const Threads threads = current_threads();
    return require_ok(without_gil([&] { return run(bytes, {.executor = threads.executor.get()}); }));
  }
  quire::AttendOptions how{.stream = stream_for(asked.stream, query), .prepared = asked.prepared};
  const bool alone = asked.workspace.is_none();
  if (alone && (asked.prepared || asked.only_prepare))
    throw_error(quire::Code::invalid_argument,
                "workspace: None, expected the one that prepare() filled for the layers of the step");
  const Wait chosen = wait_of(asked.wait, alone ? Wait::yes : Wait::no, asked.wait.is_none() ? "workspace" : "wait",
                              query.view.memory, how.stream);
  raise_if_broken(query.view.memory, how.stream);
  const DeviceWorkspace place = device_workspace(query, size, asked.workspace, asked.stream);
  if (chosen == Wait::no) how.ticket = defer_untold();
  const auto on_gpu = [&] {
    const nb::gil_scoped_release unlocked;
    const quire::Status status = run(place.bytes, how);
    return status.ok() && chosen == Wait::yes ? steps.status(plan, rest..., place.bytes, how) : status;
  };
  require_ok(on_gpu());
}

}  // namespace quire_python
