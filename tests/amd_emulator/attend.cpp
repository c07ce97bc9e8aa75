// SPDX-License-Identifier: Apache-2.0
// See attend.h.
#include "amd_emulator/attend.h"

#include <cstring>
#include <memory>

#include "backend/gpu/resolve.h"
#include "batch/fields.h"
#include "plan/device_workspace.h"
#include "quire/plan.hpp"
#include "text/formatted.h"

namespace quire::amd {
namespace {

/// Few, so that emulation takes seconds: they shape the parts of long requests and nothing else.
constexpr int kComputeUnits = 6;

/// Parts of the workspace that the kernels must not confuse, between guard pages of their own instead of side by side.
void spread_out(gpu::WorkList& work, const gpu::AttendArgs& a, std::size_t list, Arrays& arrays) {
  const auto take = [&]<class T>(T*& part, const char* name, std::int64_t count) {
    const std::string title = formatted("{} of list {}", name, list);
    part = reinterpret_cast<T*>(arrays.take(title, static_cast<std::size_t>(count) * sizeof(T)));
  };
  const std::int64_t rows = std::int64_t{work.max_partials} * work.tile_rows;
  take(work.slices, "slices", work.max_slices);
  take(work.parts_done, "parts_done", std::int64_t{work.max_merges} * a.num_kv_heads);
  take(work.partial_acc, "partial_acc", rows * a.v_head_dim);
  take(work.partial_states, "partial_states", rows * 2);
}

/// One call, as cuda::attend() enqueues it.
class Call {
 public:
  Call(const Plan& plan, const Case& c, std::uint64_t seed)
      : plan_(plan), seed_(seed), arrays_(seed % 2 == 0 ? Against::front : Against::back), there_(place(arrays_, c)) {
    std::byte* workspace = arrays_.take("workspace", workspace_bytes(plan));
    reset_.state = reinterpret_cast<gpu::CallState*>(workspace);
    reset_.num_words = static_cast<std::int32_t>(plan_detail::device_workspace(plan).reset_bytes / 4);
    for (std::size_t i = 0; i < plan.work().lists.size(); ++i) {
      lists_.push_back(gpu::attend_args(plan, there_.batch, there_.cache, there_.options, workspace, i));
      if (seed / 2 % 2 == 0) spread_out(lists_[i].work, lists_[i], i, arrays_);
    }
  }

  Attended run(LaunchKernel launch_kernel, const AttendKernel& kernel) {
    Attended result;
    result.launched = run_kernels(launch_kernel, kernel);
    result.broken = lists_[0].outcome->broken != 0;
    result.status = result.launched.ok() ? gpu::judge(*lists_[0].outcome, plan_, there_.batch) : result.launched;
    return result;
  }

  void fetch(const Case& c) const {
    Arrays::fetch(there_.batch.output, c.batch.output);
    Arrays::fetch(there_.batch.lse, c.batch.lse);
  }

 private:
  Status run_kernels(LaunchKernel launch_kernel, const AttendKernel& kernel) {
    const std::uint32_t blocks = 2 + static_cast<std::uint32_t>(seed_ % 3);
    const auto on = [&]<class Args>(const std::string& symbol, std::uint32_t count, const Args& args) {
      return launch(launch_kernel, symbol, count, args, seed_, arrays_);
    };
    const gpu::AttendArgs& first = lists_[0];
    // Neither of the two waits for the other on a device, so they come in either order.
    if (Status s = launch(launch_kernel, "quire_reset", 1, reset_, seed_, arrays_); !s.ok()) return s;
    const bool validate_first = seed_ % 5 < 3;
    if (validate_first)
      if (Status s = on("quire_validate", blocks, first); !s.ok()) return s;
    for (const gpu::AttendArgs& args : lists_)
      if (Status s = on("quire_schedule", 1, args); !s.ok()) return s;
    if (!validate_first)
      if (Status s = on("quire_validate", blocks, first); !s.ok()) return s;
    for (std::size_t i = 0; i < lists_.size(); ++i) {
      const std::string symbol = kernel.symbol(plan_, plan_.work().lists[i]);
      const gpu::AttendArgs& common = lists_[i];
      if (Status s = kernel.reads_blocks ? on(symbol, blocks, lists_[i]) : on(symbol, blocks, common); !s.ok()) return s;
    }
    return first.fills_rows() ? on("quire_fill_rows", blocks, first) : Status();
  }

  const Plan& plan_;
  std::uint64_t seed_;
  Arrays arrays_;
  Case there_;
  std::vector<gpu::GenericArgs> lists_;
  gpu::ResetArgs reset_;
};

}  // namespace

Case place(Arrays& arrays, const Case& c) {
  Case there = c;
  batch::for_each_tensor(
      [&](const batch::TensorField& field, Tensor& t) {
        t = arrays.place(std::string(field.name), t, field.access == batch::Access::written ? Use::output : Use::input);
      },
      there);
  return there;
}

Result<Plan> plan_for(const std::string& name, const AttendKernel& kernel, const Case& c, bool batch_invariant) {
  Result<Device> device = find_device(name);
  if (!device.ok()) return device.status();
  device->num_threads = kComputeUnits;
  return plan(problem_of(c.batch, c.cache, c.options), device.value(),
              {.kernel = std::string(kernel.row), .batch_invariant = batch_invariant});
}

Attended attend_once(const Plan& plan, const AttendKernel& kernel, LaunchKernel launch, std::uint64_t seed, const Case& c) {
  Call call(plan, c, seed);
  const Attended result = call.run(launch, kernel);
  call.fetch(c);
  return result;
}

Target emulated_target(const std::string& device, const AttendKernel& kernel, LaunchKernel launch, std::uint64_t seed) {
  const auto next_seed = std::make_shared<std::uint64_t>(seed);
  const auto attend = [=](bool batch_invariant) {
    return [=](const Case& c, std::string& served_by) -> Status {
      const Result<Plan> planned = plan_for(device, kernel, c, batch_invariant);
      if (!planned.ok()) return planned.status();
      served_by = kernel.row;
      return attend_once(planned.value(), kernel, launch, (*next_seed)++, c).status;
    };
  };
  Target target;
  target.name = device;
  target.attend = attend(false);
  target.batch_invariant = true;
  target.invariant = attend(true);
  return target;
}

}  // namespace quire::amd
