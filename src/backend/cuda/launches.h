// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels as host code sees them. Each function enqueues and returns the runtime's word; none allocates.
//
// A kernel of the table (src/plan/kernels.inc) is one entry: its attend launch draws the items of one list of the plan, which
// launch_prepare has filled by then.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "backend/cuda/turn.h"
#include "backend/gpu/args.h"
#include "backend/gpu/cached_lens_args.h"
#include "backend/gpu/generic_args.h"
#include "plan/kernel.h"
#include "plan/work.h"

namespace quire::cuda {

using plan_detail::DeviceList;
using plan_detail::Role;

/// Order of the launches for two lists.
enum class Order {
  in_turn,   ///< the second launch starts when the first is complete
  trailing,  ///< the second launch starts while the first ends
  divided    ///< both launches run at the same time, each on SMs of its own
};

struct KernelEntry;

/// One list of a call, as it is served. Decided once, before the first launch.
struct Served {
  const KernelEntry* kernel;
  DeviceList list;  ///< the plan's, or what stands in for it
  gpu::GenericArgs args;
};

struct KernelEntry {
  const plan_detail::KernelRow* row;
  /// args.work is `list`. A turn other than `alone` goes to kernels with an `order` alone.
  cudaError_t (*attend)(const gpu::GenericArgs& args, const DeviceList& list, Turn turn, cudaStream_t stream);
  /// Whether the kernel can read the tensors of a call, as far as the problem did not say; where it cannot, GpuTraits::instead
  /// serves the list. Null: it always can.
  bool (*reads)(const gpu::AttendArgs& args, const DeviceList& list) = nullptr;
  /// Order of the launches for two lists of this kernel; if they are divided, says so in both. Null: in_turn.
  Order (*order)(Served& first, Served& second) = nullptr;
  /// Division of the SMs for a list that is served at the same time as another call's. Null: no list is.
  void (*divide)(Served& served) = nullptr;
};

extern const KernelEntry kGenericEntry;  ///< attend_generic.cu
extern const KernelEntry kMmaEntry;      ///< mma/launch.cpp
extern const KernelEntry kSm90Entry;     ///< sm90/launch.cpp
extern const KernelEntry kSm90MlaEntry;  ///< sm90/mla/launch.cpp

/// prepare.cu: resets the leading words of the workspace, sets the outcome to broken if lengths or the block table of `args`
/// break a rule, and fills the work of up to two lists from the lengths; a list without room breaks the outcome, too.
cudaError_t launch_prepare(const gpu::AttendArgs& args, std::span<const gpu::WorkList> lists, const gpu::ResetArgs& reset,
                           cudaStream_t stream);
/// prepare.cu, too: behind the last attend kernel.
cudaError_t launch_fill_rows(const gpu::AttendArgs& args, cudaStream_t stream);

/// check_contents.cu: waits for the device, unlike the others. args.outcome is not used.
cudaError_t find_bad_contents(const gpu::GenericArgs& args, bool& found);

/// move.cu
cudaError_t launch_append(const gpu::AppendArgs& args, cudaStream_t stream);
cudaError_t launch_cached_lens(const gpu::CachedLensArgs& args, cudaStream_t stream);
cudaError_t launch_merge(const gpu::MergeArgs& args, cudaStream_t stream);
cudaError_t launch_merge_many(const gpu::MergeManyArgs& args, cudaStream_t stream);

/// bench.cu: reads all bytes once; `sink` is 4 bytes of the device.
cudaError_t launch_read(const void* data, std::int64_t bytes, void* sink, cudaStream_t stream);
/// Multiply-adds in registers: f32, or f16 with f32 sums on tensor cores. `flops` is how many.
cudaError_t launch_multiply(bool tensor_cores, void* sink, double& flops, cudaStream_t stream);

}  // namespace quire::cuda
