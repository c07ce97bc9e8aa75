// SPDX-License-Identifier: Apache-2.0
// What is CUDA's own in the attention stage: which launches an attend() is made of, the stream, the current device.

#include <array>
#include <cstring>
#include <iterator>
#include <string_view>

#include "backend/cuda/entry.h"
#include "backend/cuda/error.h"
#include "backend/cuda/launches.h"
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
std::span<const Step> steps_of(std::size_t lists, bool divided) {
  using gpu::Turn;
  static constexpr Step kTogether[] = {{1, Turn::first}, {0, Turn::beside}, {1, Turn::last}};
  static constexpr Step kInTurn[] = {{0, Turn::alone}, {1, Turn::alone}};
  static_assert(std::size(kInTurn) == plan_detail::kMaxLists);
  if (divided) return kTogether;
  return {kInTurn, lists};
}

/// Reset, prepare (validate and schedule), attend for every list, and the rows that no list has.
Status enqueue_attend(const Plan& plan, std::span<const gpu::AttendArgs> args, const gpu::ResetArgs& reset, void* stream) {
  const KernelEntry& kernel = *find_entry(plan.kernel);
  std::array<gpu::AttendArgs, plan_detail::kMaxLists> mine, scheduled;
  std::size_t num_scheduled = 0;
  for (std::size_t i = 0; i < args.size(); ++i) {
    mine[i] = args[i];
    if (kernel.reshape != nullptr) kernel.reshape(mine[i], plan, i);
  }
  const bool divided = args.size() == 2 && kernel.divide != nullptr && kernel.divide(mine, plan);
  for (std::size_t i = 0; i < args.size(); ++i)
    if (kernel.deals_itself == nullptr || !kernel.deals_itself(mine[i], plan, i)) scheduled[num_scheduled++] = mine[i];
  const cudaStream_t on = cuda_stream(stream);
  // All lists are made before any is used: one without room breaks the call before a row is written.
  if (Status s = status_of(launch_prepare(mine[0], {scheduled.data(), num_scheduled}, reset, on), "attend: launching prepare");
      !s.ok())
    return s;
  for (const Step& step : steps_of(args.size(), divided)) {
    gpu::AttendArgs& list = mine[step.list];
    list.work.turn = step.turn;
    if (Status s = status_of(kernel.attend(list, plan, step.list, on), "attend: launching the kernel"); !s.ok()) return s;
  }
  if (!args[0].fills_rows()) return {};
  return status_of(launch_fill_rows(args[0], on), "attend: launching fill_rows");
}

Status enqueue_append(const gpu::AppendArgs& args, void* stream) {
  return status_of(launch_append(args, cuda_stream(stream)), "append: launching the kernel");
}

Status enqueue_merge(const gpu::MergeArgs& args, void* stream) {
  return status_of(launch_merge(args, cuda_stream(stream)), "merge: launching the kernel");
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

const gpu::Vendor kVendor = {
    &device::kCudaRuntime, has_kernel, enqueue_attend, enqueue_append,    enqueue_merge, enqueue_merge_many, fetch, put, find_bad,
    current_device,        set_device, is_capturing,   allocate_for_host, &tickets};

}  // namespace quire::cuda
