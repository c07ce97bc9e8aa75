// SPDX-License-Identifier: Apache-2.0
// Our own kernels as targets: planned per case, counted row by row, with NaN in the workspace. A target "<backend>_cascade" is
// attend_cascade(), which reads shared pages once; its partial results are f32, so that the tolerance of plain attention judges
// it.
#include <algorithm>
#include <memory>

#include "cases/chosen_rows.h"
#include "cases/device_case.h"
#include "device/runtime.h"
#include "quire/attention.hpp"
#include "quire/cascade.hpp"
#include "quire/tools/verify.hpp"
#include "text/formatted.h"
#include "verify/own_targets.h"

namespace quire {
namespace {

using verify_detail::PoisonedWorkspace;
using verify_detail::target_of;

constexpr int kManyThreads = 13;  // a prime: no number of KV heads shares out evenly, so that long requests are split

/// Plans, attends, and demands that every row was counted once.
Status attend_planned(const Case& c, const PlanSettings& settings, Executor& executor, std::string& served_by) {
  const Result<Plan> planned = plan(c.batch, c.cache, c.options, settings);
  if (!planned.ok()) return planned.status();
  served_by = planned->kernel;
  const PoisonedWorkspace workspace(workspace_bytes(planned.value()));
  std::vector<RowCount> counts;
  const AttendOptions options{.executor = &executor, .rows = &counts};
  if (Status s = attend(planned.value(), c.batch, c.cache, c.options, workspace.span(), options); !s.ok()) return s;
  std::int64_t rows = 0;
  for (const RowCount& count : counts) rows += count.rows;
  const std::int64_t expected = num_request_rows(c.batch) * c.batch.query.shape[1];
  if (rows == expected) return {};
  return {Code::internal_error, formatted("{} rows (token x head) were counted, the batch has {}", rows, expected)};
}

/// Names of the kernels of a plan.
std::string kernels_of(const Plan& plan) { return plan.kernel; }
std::string kernels_of(const Cascade& cascade) {
  std::string names;
  for (const CascadeLevel& level : cascade.levels) names += (names.empty() ? "" : "+") + std::string(level.plan.kernel.name());
  return cascade.levels.empty() ? std::string(cascade.plain.kernel.name()) : names;
}

/// Runs the case on the current GPU: uploads it, makes a plan, runs each of `calls`, and downloads outputs.
template <typename MakePlan, typename... Calls>
Status run_on_device(const Case& c, Memory memory, std::string& served_by, MakePlan&& make_plan, Calls&&... calls) {
  const Result<cases::DeviceCase> there = cases::DeviceCase::upload(c, memory);
  if (!there.ok()) return there.status();
  const auto planned = make_plan(there->batch(), there->cache(), there->options());
  if (!planned.ok()) return planned.status();
  served_by = kernels_of(planned.value());
  const Result<cases::DeviceBytes> poisoned = there->poisoned(workspace_bytes(planned.value()));
  if (!poisoned.ok()) return poisoned.status();
  const std::span<std::byte> workspace(poisoned->data(), workspace_bytes(planned.value()));
  Status status;
  const auto run = [&](auto&& call) {
    if (status.ok()) status = call(planned.value(), there->batch(), there->cache(), there->options(), workspace);
  };
  (run(calls), ...);
  return status.ok() ? there->download(c) : status;
}

Status attend_on_device(const Case& c, const PlanSettings& settings, Memory memory, std::string& served_by) {
  // Give the plan the longest request, as engines and rounded_on() do: the kernel of a row may depend on this bound.
  PlanSettings bounded = settings;
  bounded.max_query_len = problem_of(c.batch, c.cache, c.options).max_query_len();
  return run_on_device(
      c, memory, served_by, [&](const auto&... inputs) { return plan(inputs..., bounded); },
      [](const auto&... call) { return attend(call...); }, [](const auto&... call) { return attend_status(call...); });
}

/// Rows of requests for which plan() says so.
std::vector<bool> rounded_on(const Case& c, const Device& device, const PlanSettings& settings) {
  const Problem problem = problem_of(c.batch, c.cache, c.options);
  const Result<Plan> planned = plan(problem, device, settings);
  if (planned.ok()) return cases::rounded_rows(planned.value(), problem);
  return std::vector<bool>(static_cast<std::size_t>(c.batch.query.shape[0]), false);  // refused: nothing will be judged
}

/// A row of the table for GPUs, or with no name the row that plan() picks there.
Result<Target> device_target(const std::string& name, const std::string& kernel, Backend backend) {
  const std::vector<Device> devices = gpu_devices();
  const auto device = std::find_if(devices.begin(), devices.end(), [&](const Device& d) { return d.backend == backend; });
  if (device == devices.end()) {
    const Result<Device> none = device::device_at(device::memory_of(backend), 0);
    return Status(Code::unsupported, formatted("this machine cannot run {}: {}", name, none.status().message()));
  }
  const Memory memory = device::memory_of(backend);
  const auto attend_case = [memory](const PlanSettings& settings) {
    return [=](const Case& c, std::string& served_by) { return attend_on_device(c, settings, memory, served_by); };
  };
  Target target = target_of(name, attend_case({.kernel = kernel}));
  target.rounded_rows = [device = *device, kernel](const Case& c) { return rounded_on(c, device, {.kernel = kernel}); };
  target.batch_invariant = true;
  target.invariant = attend_case({.kernel = kernel, .batch_invariant = true});
  return target;
}

AttendCase planned_target(const PlanSettings& settings, const std::shared_ptr<Executor>& executor) {
  return [=](const Case& c, std::string& served_by) { return attend_planned(c, settings, *executor, served_by); };
}

CascadeSettings cascade_settings(int num_threads) {
  return {.plan = {.num_threads = num_threads}, .always = true, .partials = DType::f32};
}

Status cascade_here(const Case& c, int num_threads, Executor& executor, std::string& kernel) {
  const Result<Cascade> planned = plan_cascade(c.batch, c.cache, c.options, cascade_settings(num_threads));
  if (!planned.ok()) return planned.status();
  kernel = kernels_of(planned.value());
  const PoisonedWorkspace workspace(workspace_bytes(planned.value()));
  return attend_cascade(planned.value(), c.batch, c.cache, c.options, workspace.span(), {.executor = &executor});
}

Status cascade_there(const Case& c, Memory memory, std::string& kernel) {
  return run_on_device(
      c, memory, kernel, [](const auto&... inputs) { return plan_cascade(inputs..., cascade_settings(0)); },
      [](const auto&... call) { return attend_cascade(call..., {}); },
      [](const auto&... call) { return cascade_status(call..., {}); });
}

/// "cpu_cascade", "cuda_cascade" or "hip_cascade"; absent for other names.
std::optional<Result<Target>> cascade_target(const std::string& name, int num_threads) {
  for (const Backend backend : {Backend::cpu, Backend::cuda, Backend::hip}) {
    if (name != std::string(quire::name(backend)) + "_cascade") continue;
    const Memory memory = device::memory_of(backend);
    if (backend == Backend::cpu) {
      const std::shared_ptr<Executor> executor = make_thread_pool(num_threads);
      return target_of(name, [=](const Case& c, std::string& kernel) { return cascade_here(c, num_threads, *executor, kernel); });
    }
    const Result<Device> device = device::device_at(memory, 0);
    if (!device.ok())
      return Status(Code::unsupported, formatted("this machine cannot run {}: {}", name, device.status().message()));
    Target target = target_of(name, [=](const Case& c, std::string& kernel) { return cascade_there(c, memory, kernel); });
    // Where nothing is shared, rows are those of the plan that plan() makes.
    target.rounded_rows = [device = device.value()](const Case& c) { return rounded_on(c, device, {}); };
    return target;
  }
  return std::nullopt;
}

}  // namespace

Target verify_detail::target_of(std::string name, AttendCase attend) {
  Target target;
  target.name = std::move(name);
  target.attend = std::move(attend);
  target.padding = target.masks = target.v_head_dim = true;
  target.eight_bit_rows = target.token_scales = target.unlike_types = target.block_scales = true;
  return target;
}

Result<Target> backend_target(const std::string& name, int num_threads) {
  if (const std::optional<Result<Target>> cascade = cascade_target(name, num_threads)) return *cascade;
  if (const std::optional<Result<Target>> lists = verify_detail::list_target(name, num_threads)) return *lists;
  for (const Backend gpu : {Backend::cuda, Backend::hip})
    if (name == quire::name(gpu)) return device_target(name, "", gpu);
  const bool any = name == quire::name(Backend::cpu);
  const Kernel* row = nullptr;
  for (const Kernel& kernel : kernels())
    if (kernel.name == name) row = &kernel;
  if (!any && row == nullptr) {
    std::string known = "cpu, cuda, hip, cpu_cascade, cuda_cascade, hip_cascade, cpu_lists";
    for (const Kernel& kernel : kernels()) known += formatted(", {}", kernel.name);
    return Status(Code::invalid_argument, formatted("no backend is called '{}'; there are {}", name, known));
  }
  if (row != nullptr && row->backend != Backend::cpu) return device_target(name, name, row->backend);
  if (row != nullptr && (row->cpu_features & ~host_device().cpu_features) != 0)
    return Status(Code::unsupported, formatted("this machine cannot run {}", name));
  const std::shared_ptr<Executor> executor = make_thread_pool(num_threads);
  const std::string kernel = any ? std::string() : name;
  const int cut = std::max(kManyThreads, executor->num_threads());  // a plan serves at most as many threads as it was made for
  Target target = target_of(name, planned_target({.kernel = kernel, .num_threads = num_threads}, executor));
  target.batch_invariant = true;
  target.invariant = planned_target({.kernel = kernel, .batch_invariant = true, .num_threads = num_threads}, executor);
  target.variants = {{"1 thread", planned_target({.kernel = kernel, .num_threads = 1}, make_thread_pool(1))},
                     {formatted("work for {} threads", cut), planned_target({.kernel = kernel, .num_threads = cut}, executor)}};
  return target;
}

}  // namespace quire
