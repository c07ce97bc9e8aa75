// SPDX-License-Identifier: Apache-2.0
// A case by attend_cascade(): shared pages are read once, wherever requests have some, and partial results are f32, so that the
// tolerance of plain attention judges them.
#include "verify/cascade_target.h"

#include <cmath>
#include <memory>

#include "cases/chosen_rows.h"
#include "cases/device_case.h"
#include "device/runtime.h"
#include "quire/cascade.hpp"
#include "text/formatted.h"

namespace quire::verify_detail {
namespace {

CascadeSettings settings_of(int num_threads) {
  return {.plan = {.num_threads = num_threads}, .always = true, .partials = DType::f32};
}

std::string served_by(const Cascade& cascade) {
  std::string names;
  for (const CascadeLevel& level : cascade.levels) names += (names.empty() ? "" : "+") + std::string(level.plan.kernel.name());
  return cascade.levels.empty() ? std::string(cascade.plain.kernel.name()) : names;
}

Status attend_here(const Case& c, int num_threads, Executor& executor, std::string& kernel) {
  const Result<Cascade> planned = plan_cascade(c.batch, c.cache, c.options, settings_of(num_threads));
  if (!planned.ok()) return planned.status();
  kernel = served_by(planned.value());
  const std::size_t bytes = workspace_bytes(planned.value());
  std::vector<float> memory(bytes / sizeof(float) + 32, std::nanf(""));
  void* start = memory.data();
  std::size_t room = memory.size() * sizeof(float);
  std::align(64, bytes, start, room);
  return attend_cascade(planned.value(), c.batch, c.cache, c.options, {static_cast<std::byte*>(start), bytes},
                        {.executor = &executor});
}

Status attend_there(const Case& c, Memory memory, std::string& kernel) {
  const Result<cases::DeviceCase> there = cases::DeviceCase::upload(c, memory);
  if (!there.ok()) return there.status();
  const Result<Cascade> planned = plan_cascade(there->batch(), there->cache(), there->options(), settings_of(0));
  if (!planned.ok()) return planned.status();
  kernel = served_by(planned.value());
  const Result<cases::DeviceBytes> poisoned = there->poisoned(workspace_bytes(planned.value()));
  if (!poisoned.ok()) return poisoned.status();
  const std::span<std::byte> workspace(poisoned->data(), workspace_bytes(planned.value()));
  for (const auto run : {attend_cascade, cascade_status})
    if (Status s = run(planned.value(), there->batch(), there->cache(), there->options(), workspace, {}); !s.ok()) return s;
  return there->download(c);
}

Target target_of(const std::string& name, AttendCase attend) {
  Target target;
  target.name = name;
  target.attend = std::move(attend);
  target.padding = true;
  target.masks = true;
  target.v_head_dim = true;
  target.eight_bit_rows = true;
  target.token_scales = true;
  target.unlike_types = true;
  return target;
}

}  // namespace

std::optional<Result<Target>> cascade_target(const std::string& name, int num_threads) {
  for (const Backend backend : {Backend::cpu, Backend::cuda, Backend::hip}) {
    if (name != std::string(quire::name(backend)) + "_cascade") continue;
    const Memory memory = device::memory_of(backend);
    if (backend == Backend::cpu) {
      const std::shared_ptr<Executor> executor = make_thread_pool(num_threads);
      return target_of(name, [=](const Case& c, std::string& kernel) { return attend_here(c, num_threads, *executor, kernel); });
    }
    const Result<Device> device = device::device_at(memory, 0);
    if (!device.ok())
      return Status(Code::unsupported, formatted("this machine cannot run {}: {}", name, device.status().message()));
    Target target = target_of(name, [=](const Case& c, std::string& kernel) { return attend_there(c, memory, kernel); });
    // Where nothing is shared, rows are those of the plan that plan() makes.
    target.rounded_rows = [device = device.value()](const Case& c) {
      const Problem problem = problem_of(c.batch, c.cache, c.options);
      const Result<Plan> planned = plan(problem, device, {});
      if (planned.ok()) return cases::rounded_rows(planned.value(), problem);
      return std::vector<bool>(static_cast<std::size_t>(c.batch.query.shape[0]), false);
    };
    return target;
  }
  return std::nullopt;
}

}  // namespace quire::verify_detail
