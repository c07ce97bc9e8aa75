// SPDX-License-Identifier: Apache-2.0
// What is HIP's own in the attention stage: which launches an attend() is made of, the stream, the current device.

#include <array>
#include <cstring>
#include <mutex>

#include "backend/gpu/generic_sizes.h"
#include "backend/gpu/launch_sizes.h"
#include "backend/gpu/tickets.h"
#include "backend/hip/entry.h"
#include "backend/hip/matrix_launch.h"
#include "backend/hip/modules.h"
#include "plan/device_workspace.h"
#include "plan/kernel.h"
#include "text/formatted.h"

namespace quire::hip {
namespace {

constexpr const char* kPortable = "kernels";  // kernels.hip

/// Launches a kernel. `arguments` is its only parameter, by value. Shared memory is static, so that no dynamic memory is needed.
template <class Arguments>
Status launch(const Launch& what, std::int64_t blocks, const Arguments& arguments, Stream stream) {
  const Result<Function> function = find_function(what.source, what.kernel);
  if (!function.ok()) return function.status();
  const Api& hip = *api().value();  // find_function() has found a runtime
  void* parameters[] = {const_cast<Arguments*>(&arguments)};
  const Error error =
      hip.module_launch_kernel(function.value(), static_cast<unsigned>(blocks), 1, 1, static_cast<unsigned>(what.threads), 1, 1,
                               /*dynamic_shared_bytes=*/0, stream, parameters, /*extra=*/nullptr);
  if (error == kSuccess) return {};
  return status_of(hip, error, formatted("launching {} with {} blocks of {} threads", what.kernel, blocks, what.threads).c_str());
}

Result<Launch> generic_launch(const Plan&, const plan_detail::DeviceList&) {
  return Launch{kPortable, "quire_attend_generic", gpu::kGenericThreads};
}

/// A kernel of the table and the launch for one of its lists.
struct KernelEntry {
  const plan_detail::KernelRow* row;
  Result<Launch> (*launch_of)(const Plan& plan, const plan_detail::DeviceList& list);
};
constexpr KernelEntry kEntries[] = {{&plan_detail::rows::hip_matrix, matrix_launch},
                                    {&plan_detail::rows::hip_generic, generic_launch}};

const KernelEntry* find_entry(KernelHandle kernel) {
  for (const KernelEntry& entry : kEntries)
    if (kernel == *entry.row) return &entry;
  return nullptr;
}

bool has_kernel(KernelHandle kernel) { return find_entry(kernel) != nullptr; }

/// The kernel for each list, loaded, so that no launch fails for want of it after another has written rows.
Result<std::array<Launch, plan_detail::kMaxLists>> attend_launches(const Plan& plan) {
  std::array<Launch, plan_detail::kMaxLists> launches{};
  for (std::size_t i = 0; i < plan.work().lists.size(); ++i) {
    const Result<Launch> one = find_entry(plan.work().lists[i].kernel)->launch_of(plan, plan.work().lists[i]);
    if (!one.ok()) return one.status();
    if (const Result<Function> there = find_function(one->source, one->kernel); !there.ok()) return there.status();
    launches[i] = one.value();
  }
  return launches;
}

/// Resets the counters, checks lengths and tables and makes all lists before any is used: one without room breaks the call before
/// a row is written.
Status enqueue_preparation(std::span<const gpu::GenericArgs> args, const gpu::ResetArgs& reset, void* stream) {
  if (Status s = launch({kPortable, "quire_reset", gpu::kResetThreads}, 1, reset, stream); !s.ok()) return s;
  const Launch validate{kPortable, "quire_validate", gpu::kValidateThreads};
  if (Status s = launch(validate, gpu::validate_blocks(args[0]), args[0], stream); !s.ok()) return s;
  for (const gpu::AttendArgs& list : args)
    if (Status s = launch({kPortable, "quire_schedule", gpu::kScheduleThreads}, 1, list, stream); !s.ok()) return s;
  return {};
}

Status enqueue_attend(const gpu::EnqueuedCall& call, gpu::Part part, void* stream) {
  const auto& [plan, args, reset] = call;
  const auto attend = attend_launches(plan);
  if (!attend.ok()) return attend.status();
  if (part != gpu::Part::layer)
    if (Status s = enqueue_preparation(args, reset, stream); !s.ok()) return s;
  if (part == gpu::Part::preparation) return {};
  for (std::size_t i = 0; i < args.size(); ++i) {
    gpu::GenericArgs list = args[i];
    list.confirms = list.prepared && i == 0;
    if (Status s = launch(attend.value()[i], plan.work().lists[i].num_blocks, list, stream); !s.ok()) return s;
  }
  if (!args[0].fills_rows()) return {};
  return launch({kPortable, "quire_fill_rows", gpu::kFillThreads}, gpu::fill_blocks(args[0]), args[0], stream);
}

Status enqueue_append(const gpu::AppendArgs& args, void* stream) {
  const auto enqueue = [&](const char* kernel) {
    return launch({kPortable, kernel, gpu::kAppendThreads}, gpu::append_blocks(args), args, stream);
  };
  if (gpu::appends_four_bits(args))
    if (Status s = enqueue("quire_append_four_bits"); !s.ok()) return s;
  return gpu::appends_others(args) ? enqueue("quire_append") : Status{};
}

Status enqueue_merge(const gpu::MergeArgs& args, void* stream) {
  return launch({kPortable, "quire_merge", gpu::kMergeThreads}, gpu::merge_blocks(args), args, stream);
}

Status enqueue_merge_many(const gpu::MergeManyArgs& args, void* stream) {
  return launch({kPortable, "quire_merge_many", gpu::kMergeThreads}, gpu::merge_many_blocks(args), args, stream);
}

/// Copies in stream order and waits for the copy.
Status copy(void* to, const void* from, std::size_t bytes, MemcpyKind kind, void* stream) {
  if (Status s = call(&Api::memcpy_async, "hipMemcpyAsync", to, from, bytes, kind, stream); !s.ok()) return s;
  return call(&Api::stream_synchronize, "waiting for the stream", stream);
}
Status fetch(void* to, const void* from, std::size_t bytes, void* stream) { return copy(to, from, bytes, kDeviceToHost, stream); }
Status put(void* to, const void* from, std::size_t bytes, void* stream) { return copy(to, from, bytes, kHostToDevice, stream); }

/// The answer is a variable of the code object, because the library allocates nothing on a device.
Result<bool> find_bad_contents(const gpu::GenericArgs& args) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> locked(one_at_a_time);
  gpu::Outcome outcome;
  const Result<void*> answer = find_variable(kPortable, "quire_contents_answer", sizeof outcome);
  if (!answer.ok()) return answer.status();
  gpu::GenericArgs asked = args;
  asked.outcome = static_cast<gpu::Outcome*>(answer.value());
  Status s = call(&Api::memcpy, "check: hipMemcpy to the device", answer.value(), &outcome, sizeof outcome, kHostToDevice);
  if (!s.ok()) return s;
  const Launch look{kPortable, "quire_check_contents", gpu::kContentThreads};
  if (s = launch(look, gpu::contents_blocks(asked), asked, nullptr); !s.ok()) return s;
  s = call(&Api::memcpy, "check: hipMemcpy to the host", &outcome, answer.value(), sizeof outcome, kDeviceToHost);
  if (!s.ok()) return s;
  return outcome.broken != 0;
}

Status set_device(int ordinal) { return call(&Api::set_device, "hipSetDevice", ordinal); }

Result<bool> is_capturing(void* stream) {
  int status = 0;
  if (Status s = call(&Api::stream_is_capturing, "hipStreamIsCapturing", stream, &status); !s.ok()) return s;
  return status != kNotCapturing;
}

/// An allocation ends a capture, unless the thread says that it knows what it does.
Result<void*> allocate_for_host(std::size_t bytes) {
  constexpr auto kSetMode = &Api::exchange_capture_mode;
  int mode = kCaptureModeRelaxed;
  if (Status s = call(kSetMode, "hipThreadExchangeStreamCaptureMode", &mode); !s.ok()) return s;
  void* memory = nullptr;
  Status made = call(&Api::host_malloc, "hipHostMalloc", &memory, bytes, kHostMemoryOfAll);
  (void)call(kSetMode, "hipThreadExchangeStreamCaptureMode", &mode);
  if (!made.ok()) return made;
  std::memset(memory, 0, bytes);
  return memory;
}

gpu::Tickets tickets;

}  // namespace

const gpu::Vendor kVendor = {&device::kHipRuntime,
                             has_kernel,
                             enqueue_attend,
                             nullptr,  // HIP has no kernel that serves two calls at the same time
                             enqueue_append,
                             enqueue_merge,
                             enqueue_merge_many,
                             nullptr,
                             fetch,
                             put,
                             find_bad_contents,
                             current_device,
                             set_device,
                             is_capturing,
                             allocate_for_host,
                             &tickets};

}  // namespace quire::hip
