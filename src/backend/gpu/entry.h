// SPDX-License-Identifier: Apache-2.0
// The attention stage on any GPU: rules, arguments and outcomes are checked here, once; struct Vendor holds a vendor's functions.
// Arguments as in quire/attention.hpp.
#pragma once

#include <cstddef>
#include <span>

#include "backend/gpu/args.h"
#include "backend/gpu/cached_lens_args.h"
#include "backend/gpu/generic_args.h"
#include "device/runtime.h"
#include "quire/attention.hpp"

namespace quire::gpu {

class Tickets;

/// Part of attend() that is enqueued: all of it, the work that the layers of a step share, or the work of one layer.
enum class Part { call, preparation, layer };

/// Arguments of attend() and their workspace.
struct Call {
  const Plan& plan;
  const Batch& batch;
  const KVCache& cache;
  const Options& options;
  std::span<std::byte> workspace;
};

/// A call as a vendor launches it; args[i] is for plan.work().lists[i].
struct EnqueuedCall {
  const Plan& plan;
  std::span<const GenericArgs> args;
  ResetArgs reset;
};

/// Launches and streams of one vendor. A stream is the vendor's own handle. Enqueueing functions wait for nothing and allocate
/// nothing; failures carry the driver's words.
struct Vendor {
  const device::Runtime* runtime;

  /// Whether this build has the launches of a row of the kernel table.
  bool (*has_kernel)(KernelHandle kernel);
  /// Enqueues the launches of `part`. A preparation resets, checks lengths and tables, and fills the work lists. A layer attends,
  /// and fills rows if args ask for it.
  Status (*enqueue_attend)(const EnqueuedCall& call, Part part, void* stream);
  /// Enqueues two calls, for whose plans set_beside() held; one after the other if their kernels cannot read the tensors. A
  /// preparation is each call's own. Null if no kernel of the vendor serves two calls at the same time.
  Status (*enqueue_beside)(const EnqueuedCall& longer, const EnqueuedCall& shorter, Part part, void* stream);
  Status (*enqueue_append)(const AppendArgs& args, void* stream);
  Status (*enqueue_merge)(const MergeArgs& args, void* stream);
  Status (*enqueue_merge_many)(const MergeManyArgs& args, void* stream);
  /// Null if the vendor has no such kernel.
  Status (*enqueue_cached_lens)(const CachedLensArgs& args, void* stream);
  /// Copies to the host what is there when the stream has come so far, and waits for it.
  Status (*fetch)(void* to, const void* from, std::size_t bytes, void* stream);
  /// Copies to the device when the stream has come so far, and waits for it.
  Status (*put)(void* to, const void* from, std::size_t bytes, void* stream);
  /// Whether check_contents() finds something; waits for the answer. args.outcome is not used.
  Result<bool> (*find_bad_contents)(const GenericArgs& args);

  /// The device that is current for this thread, and another made so.
  Result<int> (*current_device)();
  Status (*set_device)(int ordinal);

  /// Whether the stream is being captured in a graph, where nothing may wait.
  Result<bool> (*is_capturing)(void* stream);
  /// Zeroed bytes of the host that every device of the vendor writes at the same address; allowed during a capture. Never freed.
  Result<void*> (*allocate_for_host)(std::size_t bytes);
  Tickets* tickets;
};

Status attend(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
              std::span<std::byte> workspace, const AttendOptions& attend_options);
/// Both calls (attention/beside.h).
Status attend_beside(const Vendor& vendor, const Call& longer, const Call& shorter, const AttendOptions& attend_options);
Status prepare(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
               std::span<std::byte> workspace, const AttendOptions& attend_options);
Status attend_status(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                     std::span<std::byte> workspace, const AttendOptions& attend_options);
/// Refuses all that can be refused without reading a tensor, except a wrong workspace.
Status admit(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options);
/// `part` of an attend() that was admitted.
Status enqueue_admitted(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                        std::span<std::byte> workspace, Part part, const AttendOptions& attend_options);
/// The part that attend() enqueues with these options.
inline Part part_of(const AttendOptions& attend_options) { return attend_options.prepared ? Part::layer : Part::call; }
Status append(const Vendor& vendor, const KVCache& cache, const Tensor& key, const Tensor& value, const Tensor& slot_mapping,
              const AppendOptions& options);
Status merge(const Vendor& vendor, const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b, const Tensor& lse_b,
             const Tensor& out, const Tensor& lse, const MergeOptions& merge_options);
Status merge_many(const Vendor& vendor, const Tensor& outs, const Tensor& lses, const Tensor& out, const Tensor& lse,
                  const MergeOptions& merge_options);

Status derive_cached_lens(const Vendor& vendor, const Tensor& query_start_loc, const Tensor& seq_lens, const Tensor& cached_lens,
                          void* stream);

/// Functions of quire/attention.hpp for one vendor's devices.
std::uint64_t take_broken_ticket(const Vendor& vendor) noexcept;
bool has_broken_ticket(const Vendor& vendor) noexcept;
Status synchronize(const Vendor& vendor);
Status why_broken(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options);

/// Implements device::Runtime::contents_are_finite.
Result<bool> contents_are_finite(const Vendor& vendor, const Batch& batch, const KVCache& cache, const Options& options);

}  // namespace quire::gpu
