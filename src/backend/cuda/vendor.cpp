// SPDX-License-Identifier: Apache-2.0
// What is CUDA's own in the attention stage: which launches an attend() is made of, the stream, the current device.

#include <array>
#include <cstring>
#include <iterator>
#include <string_view>

#include "backend/cuda/entry.h"
#include "backend/cuda/error.h"
#include "backend/cuda/launches.h"
#include "backend/gpu/permit.h"
#include "backend/gpu/tickets.h"
#include "plan/device_workspace.h"

namespace quire::cuda {
namespace {

cudaStream_t cuda_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

const KernelEntry* find_entry(std::string_view kernel) {
  static const KernelEntry* const entries[] = {&kSm90Entry, &kMmaEntry, &kGenericEntry};
  for (const KernelEntry* entry : entries)
    if (kernel == entry->name) return entry;
  return nullptr;
}

bool has_kernel(std::string_view name) { return find_entry(name) != nullptr; }

/// One launch of the kernel, for one list.
struct Step {
  std::size_t list;
  gpu::Turn turn;
};

/// The launches for `lists` lists, in their order in the stream.
std::span<const Step> steps_of(std::size_t lists, Order order) {
  using gpu::Turn;
  static constexpr Step kTrailing[] = {{0, Turn::leading}, {1, Turn::trailing}};
  static constexpr Step kTogether[] = {{1, Turn::first}, {0, Turn::beside}, {1, Turn::last}};
  static constexpr Step kInTurn[] = {{0, Turn::alone}, {1, Turn::alone}};
  static_assert(std::size(kInTurn) == plan_detail::kMaxLists);
  if (order == Order::divided) return kTogether;
  if (order == Order::trailing) return kTrailing;
  return {kInTurn, lists};
}

/// A call as its launches: what each list's kernel is given, in which order, and which lists are made ahead.
struct Launches {
  const KernelEntry& kernel;
  std::array<gpu::AttendArgs, plan_detail::kMaxLists> lists;
  std::size_t num_lists;
  std::array<gpu::AttendArgs, plan_detail::kMaxLists> scheduled;
  std::size_t num_scheduled = 0;
  Order order = Order::in_turn;

  Launches(const Plan& plan, std::span<const gpu::AttendArgs> args) : kernel(*find_entry(plan.kernel)), num_lists(args.size()) {
    for (std::size_t i = 0; i < num_lists; ++i) {
      lists[i] = args[i];
      if (kernel.reshape != nullptr) kernel.reshape(lists[i], plan, i);
    }
    if (num_lists == 2 && kernel.order != nullptr) order = kernel.order(lists, plan);
    // A layer may be served as its preparation was, and no otherwise.
    unsigned long long served = static_cast<unsigned>(order);
    for (std::size_t i = 0; i < num_lists; ++i) {
      const bool ahead = kernel.deals_itself == nullptr || !kernel.deals_itself(lists[i], plan, i);
      served = served * 1024 + static_cast<unsigned>(lists[i].work.tile_rows) * 2 + (ahead ? 1 : 0);
      if (ahead) scheduled[num_scheduled++] = lists[i];
    }
    for (std::size_t i = 0; i < num_lists; ++i) lists[i].permit = gpu::permit_with(args[0].permit, served);
    for (std::size_t i = 0; i < num_scheduled; ++i) scheduled[i].permit = lists[0].permit;
  }

  /// Reset, validate and schedule. All lists are made before any is used: one without room breaks the call before a row is
  /// written.
  Status prepare(gpu::ResetArgs reset, cudaStream_t on) const {
    reset.permit = lists[0].permit;
    return status_of(launch_prepare(lists[0], {scheduled.data(), num_scheduled}, reset, on), "attend: launching prepare");
  }
  /// Attend for every list, and the rows that no list has.
  Status attend(const Plan& plan, cudaStream_t on) {
    bool confirms = lists[0].prepared;
    for (const Step& step : steps_of(num_lists, order)) {
      gpu::AttendArgs& list = lists[step.list];
      list.work.turn = step.turn;
      list.confirms = confirms;
      confirms = false;
      if (Status s = status_of(kernel.attend(list, plan, step.list, on), "attend: launching the kernel"); !s.ok()) return s;
    }
    if (!lists[0].fills_rows()) return {};
    return status_of(launch_fill_rows(lists[0], on), "attend: launching fill_rows");
  }
};

Status enqueue_attend(const Plan& plan, std::span<const gpu::AttendArgs> args, const gpu::ResetArgs& reset, gpu::Part part,
                      void* stream) {
  Launches launches(plan, args);
  const cudaStream_t on = cuda_stream(stream);
  if (part != gpu::Part::layer)
    if (Status s = launches.prepare(reset, on); !s.ok()) return s;
  return part == gpu::Part::preparation ? Status() : launches.attend(plan, on);
}

Status enqueue_append(const gpu::AppendArgs& args, void* stream) {
  return status_of(launch_append(args, cuda_stream(stream)), "append: launching the kernel");
}

Status enqueue_merge(const gpu::MergeArgs& args, void* stream) {
  return status_of(launch_merge(args, cuda_stream(stream)), "merge: launching the kernel");
}

Status enqueue_cached_lens(const gpu::CachedLensArgs& args, void* stream) {
  return status_of(launch_cached_lens(args, cuda_stream(stream)), "derive_cached_lens: launching the kernel");
}

Status enqueue_merge_many(const gpu::MergeManyArgs& args, void* stream) {
  return status_of(launch_merge_many(args, cuda_stream(stream)), "merge_many: launching the kernel");
}

Status fetch(void* to, const void* from, std::size_t bytes, void* stream) {
  const cudaStream_t on = cuda_stream(stream);
  if (Status s = status_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, on), "cudaMemcpyAsync"); !s.ok()) return s;
  return status_of(cudaStreamSynchronize(on), "waiting for the stream");
}

Status put(void* to, const void* from, std::size_t bytes, void* stream) {
  const cudaStream_t on = cuda_stream(stream);
  if (Status s = status_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, on), "cudaMemcpyAsync"); !s.ok()) return s;
  return status_of(cudaStreamSynchronize(on), "waiting for the stream");
}

Result<bool> find_bad(const gpu::AttendArgs& args) {
  bool found = false;
  if (Status s = status_of(find_bad_contents(args, found), "check: asking the device about contents"); !s.ok()) return s;
  return found;
}

Result<int> current_device() {
  int ordinal = 0;
  if (Status s = status_of(cudaGetDevice(&ordinal), "cudaGetDevice"); !s.ok()) return s;
  return ordinal;
}

Status set_device(int ordinal) { return status_of(cudaSetDevice(ordinal), "cudaSetDevice"); }

Result<bool> is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (Status s = status_of(cudaStreamIsCapturing(cuda_stream(stream), &status), "cudaStreamIsCapturing"); !s.ok()) return s;
  return status != cudaStreamCaptureStatusNone;
}

/// An allocation ends a capture, unless the thread says that it knows what it does.
Result<void*> allocate_for_host(std::size_t bytes) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (Status s = status_of(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode"); !s.ok()) return s;
  void* memory = nullptr;
  Status made = status_of(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  if (!made.ok()) return made;
  std::memset(memory, 0, bytes);
  return memory;
}

gpu::Tickets tickets;

}  // namespace

const gpu::Vendor kVendor = {&device::kCudaRuntime,
                             has_kernel,
                             enqueue_attend,
                             enqueue_append,
                             enqueue_merge,
                             enqueue_merge_many,
                             enqueue_cached_lens,
                             fetch,
                             put,
                             find_bad,
                             current_device,
                             set_device,
                             is_capturing,
                             allocate_for_host,
                             &tickets};

}  // namespace quire::cuda
