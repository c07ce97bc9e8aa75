// SPDX-License-Identifier: Apache-2.0
// What is CUDA's own in the attention stage: which launches an attend() is made of, the stream, the current device.

#include <array>
#include <cstring>
#include <iterator>

#include "backend/cuda/entry.h"
#include "backend/cuda/error.h"
#include "backend/cuda/launches.h"
#include "backend/gpu/permit.h"
#include "backend/gpu/resolve.h"
#include "backend/gpu/tickets.h"
#include "plan/device_workspace.h"

namespace quire::cuda {
namespace {

cudaStream_t cuda_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

const KernelEntry* find_entry(KernelHandle kernel) {
  static const KernelEntry* const entries[] = {&kSm90Entry, &kSm90MlaEntry, &kMmaEntry, &kGenericEntry};
  for (const KernelEntry* entry : entries)
    if (kernel == *entry->row) return entry;
  return nullptr;
}

bool has_kernel(KernelHandle kernel) { return find_entry(kernel) != nullptr; }

/// One launch of the kernel, for one list.
struct Step {
  std::size_t list;
  Turn turn;
};

/// The launches for `lists` lists, in their order in the stream.
std::span<const Step> steps_of(std::size_t lists, Order order) {
  static constexpr Step kTrailing[] = {{0, Turn::leading}, {1, Turn::trailing}};
  static constexpr Step kTogether[] = {{1, Turn::first}, {0, Turn::beside}, {1, Turn::last}};
  static constexpr Step kInTurn[] = {{0, Turn::alone}, {1, Turn::alone}};
  static_assert(std::size(kInTurn) == plan_detail::kMaxLists);
  if (order == Order::divided) return kTogether;
  if (order == Order::trailing) return kTrailing;
  return {kInTurn, lists};
}

/// Finds the kernel, list and arguments that serve a list of the plan, given the tensors of a call. A kernel is asked and
/// launched with all numbers of the list that serves.
Served serve(const DeviceList& list, const Plan& plan, const gpu::GenericArgs& args) {
  Served served{find_entry(list.kernel), list, args};
  while (served.kernel->reads != nullptr && !served.kernel->reads(served.args, served.list)) {
    served.list = served.list.kernel.row().gpu->instead(plan, served.list);
    served.kernel = find_entry(served.list.kernel);
    gpu::set_list(served.args.work, served.list, args.num_kv_heads);
  }
  return served;
}

/// A call as its launches: who serves each list, in which order, and which lists are made ahead.
struct Launches {
  std::array<Served, plan_detail::kMaxLists> lists;
  std::size_t num_lists;
  std::array<gpu::WorkList, plan_detail::kMaxLists> scheduled;
  std::size_t num_scheduled = 0;
  Order order = Order::in_turn;

  explicit Launches(const gpu::EnqueuedCall& call) : num_lists(call.args.size()) {
    for (std::size_t i = 0; i < num_lists; ++i) lists[i] = serve(call.plan.work().lists[i], call.plan, call.args[i]);
    if (num_lists == 2 && lists[0].kernel == lists[1].kernel && lists[0].kernel->order != nullptr)
      order = lists[0].kernel->order(lists[0], lists[1]);
    if (num_lists == 1 && lists[0].list.given_units > 0 && lists[0].kernel->divide != nullptr) lists[0].kernel->divide(lists[0]);
    // A layer may be served as its preparation was, and no otherwise.
    unsigned long long served = static_cast<unsigned>(order);
    for (std::size_t i = 0; i < num_lists; ++i) {
      const bool ahead = !plan_detail::body_of(lists[i].list).deals_itself();
      served = served * 1024 + static_cast<unsigned>(lists[i].list.tile_rows) * 2 + (ahead ? 1 : 0);
      if (ahead) scheduled[num_scheduled++] = lists[i].args.work;
    }
    for (std::size_t i = 0; i < num_lists; ++i) lists[i].args.permit = gpu::permit_with(call.args[0].permit, served);
  }

  /// Reset, validate and schedule. All lists are made before any is used: one without room breaks the call before a row is
  /// written.
  Status prepare(gpu::ResetArgs reset, cudaStream_t on) const {
    reset.permit = lists[0].args.permit;
    return status_of(launch_prepare(lists[0].args, {scheduled.data(), num_scheduled}, reset, on), "attend: launching prepare");
  }
  /// Attend for every list, and the rows that no list has.
  Status attend(cudaStream_t on) {
    bool confirms = lists[0].args.prepared;
    for (const Step& step : steps_of(num_lists, order)) {
      auto& [kernel, list, args] = lists[step.list];
      args.confirms = confirms;
      confirms = false;
      if (Status s = status_of(kernel->attend(args, list, step.turn, on), "attend: launching the kernel"); !s.ok()) return s;
    }
    if (!lists[0].args.fills_rows()) return {};
    return status_of(launch_fill_rows(lists[0].args, on), "attend: launching fill_rows");
  }
};

Status enqueue_attend(const gpu::EnqueuedCall& call, gpu::Part part, void* stream) {
  Launches launches(call);
  const cudaStream_t on = cuda_stream(stream);
  if (part != gpu::Part::layer)
    if (Status s = launches.prepare(call.reset, on); !s.ok()) return s;
  return part == gpu::Part::preparation ? Status() : launches.attend(on);
}

/// The launches of two calls as if their lists were one call's.
Status attend_divided(Served& longer, Served& shorter, cudaStream_t on) {
  shorter.args.work.division = longer.args.work.division;
  for (Served* served : {&longer, &shorter}) served->args.confirms = served->args.prepared;
  for (const Step& step : steps_of(2, Order::divided)) {
    Served& served = step.list == 0 ? shorter : longer;
    if (Status s = status_of(served.kernel->attend(served.args, served.list, step.turn, on), "attend: launching the kernel");
        !s.ok())
      return s;
    served.args.confirms = false;
  }
  for (const Served* served : {&longer, &shorter})
    if (served->args.fills_rows())
      if (Status s = status_of(launch_fill_rows(served->args, on), "attend: launching fill_rows"); !s.ok()) return s;
  return {};
}

Status enqueue_beside(const gpu::EnqueuedCall& longer, const gpu::EnqueuedCall& shorter, gpu::Part part, void* stream) {
  Launches first(longer), second(shorter);
  const bool divided = first.lists[0].args.work.division.all_units > 0 && first.lists[0].kernel == second.lists[0].kernel;
  if (!divided) {
    if (Status s = enqueue_attend(longer, part, stream); !s.ok()) return s;
    return enqueue_attend(shorter, part, stream);
  }
  const cudaStream_t on = cuda_stream(stream);
  if (part == gpu::Part::call) {
    if (Status s = first.prepare(longer.reset, on); !s.ok()) return s;
    if (Status s = second.prepare(shorter.reset, on); !s.ok()) return s;
  }
  return attend_divided(first.lists[0], second.lists[0], on);
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

Status copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, void* stream) {
  const cudaStream_t on = cuda_stream(stream);
  if (Status s = status_of(cudaMemcpyAsync(to, from, bytes, kind, on), "cudaMemcpyAsync"); !s.ok()) return s;
  return status_of(cudaStreamSynchronize(on), "waiting for the stream");
}
Status fetch(void* to, const void* from, std::size_t bytes, void* stream) {
  return copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
}
Status put(void* to, const void* from, std::size_t bytes, void* stream) {
  return copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
}

Result<bool> find_bad(const gpu::GenericArgs& args) {
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
                             enqueue_beside,
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
