// cuda::attend(): check the metadata, resolve pointers, enqueue: reset, prepare (validate and schedule), and attend for
// every list.
// cuda::attend_status(): what the device found and wrote.

#include <array>
#include <string>

#include "backend/cuda/current_device.h"
#include "backend/cuda/entry.h"
#include "backend/cuda/launches.h"
#include "backend/gpu/resolve.h"
#include "plan/device_workspace.h"
#include "plan/fits.h"
#include "text/formatted.h"

namespace quire::cuda {
namespace {

const KernelEntry* find_entry(const std::string& kernel) {
  static const KernelEntry* const entries[] = {&kSm90Entry, &kMmaEntry, &kGenericEntry};
  for (const KernelEntry* entry : entries)
    if (kernel == entry->name) return entry;
  return nullptr;
}

/// Everything that can be refused without reading a tensor.
Status admit(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace) {
  if (const Findings findings = check(batch, cache, options, Depth::metadata); !findings.ok()) return findings.status();
  if (Status s = plan_detail::shapes_fit(plan, batch, cache, options); !s.ok()) return s;
  if (Status s = plan_detail::counts_within(plan, batch); !s.ok()) return s;
  if (find_entry(plan.kernel) == nullptr)
    return {Code::unsupported, formatted("attend: kernel {} of the plan is not in this build", plan.kernel)};
  if (plan.device.ordinal < 0)
    return {Code::unsupported,
            formatted("attend: the plan was made for the pretended device {}; plan for gpu_device()", plan.device.name)};
  return plan_detail::workspace_fits(plan, workspace);
}

Status enqueue(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::byte* workspace,
               cudaStream_t stream) {
  const KernelEntry& kernel = *find_entry(plan.kernel);
  std::array<gpu::AttendArgs, plan_detail::kMaxLists> args, scheduled;
  std::size_t num_scheduled = 0;
  for (std::size_t i = 0; i < plan.lists.size(); ++i) {
    args[i] = gpu::attend_args(plan, batch, cache, options, workspace, i);
    if (kernel.deals_itself == nullptr || !kernel.deals_itself(args[i], plan, i)) scheduled[num_scheduled++] = args[i];
  }
  const auto zeroed = static_cast<std::size_t>(plan_detail::device_workspace(plan).zeroed_bytes);
  if (Status s = status_of(launch_reset(workspace, zeroed, stream), "attend: launching reset"); !s.ok()) return s;
  // All lists are made before any is used: one without room breaks the call before a row is written.
  if (Status s = status_of(launch_prepare(args[0], {scheduled.data(), num_scheduled}, stream), "attend: launching prepare");
      !s.ok())
    return s;
  for (std::size_t i = 0; i < plan.lists.size(); ++i)
    if (Status s = status_of(kernel.attend(args[i], plan, i, stream), "attend: launching the kernel"); !s.ok()) return s;
  return {};
}

/// The outcome is broken: the same question is asked on the host, where the answer has words.
Status explain_broken(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                      const gpu::Outcome& outcome) {
  if (const Findings findings = check(batch, cache, options, Depth::tables); !findings.ok()) return findings.status();
  if (Status s = plan_detail::lengths_within(plan, batch); !s.ok()) return s;
  return gpu::judge(outcome, plan, batch);
}

}  // namespace

Status attend(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
              const AttendOptions& attend_options) {
  if (Status s = admit(plan, batch, cache, options, workspace); !s.ok()) return s;
  const CurrentDevice current(plan.device.ordinal);
  if (!current.status().ok()) return current.status();
  return enqueue(plan, batch, cache, options, workspace.data(), static_cast<cudaStream_t>(attend_options.stream));
}

Status attend_status(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                     std::span<std::byte> workspace, const AttendOptions& attend_options) {
  if (Status s = admit(plan, batch, cache, options, workspace); !s.ok()) return s;
  const CurrentDevice current(plan.device.ordinal);
  if (!current.status().ok()) return current.status();
  gpu::Outcome outcome;
  const std::byte* at = workspace.data() + plan_detail::device_workspace(plan).outcome;
  auto* const stream = static_cast<cudaStream_t>(attend_options.stream);
  if (Status s = status_of(cudaMemcpyAsync(&outcome, at, sizeof outcome, cudaMemcpyDeviceToHost, stream), "attend_status");
      !s.ok())
    return s;
  if (Status s = status_of(cudaStreamSynchronize(stream), "attend_status: waiting for the stream"); !s.ok()) return s;
  if (outcome.broken != 0) return explain_broken(plan, batch, cache, options, outcome);
  if (Status s = gpu::judge(outcome, plan, batch); !s.ok()) return s;
  if (attend_options.rows != nullptr) *attend_options.rows = {{plan.kernel, static_cast<std::int64_t>(outcome.rows_written)}};
  return {};
}

}  // namespace quire::cuda
