// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Kernels before the attend kernels of a call or step: reset, then one launch in which a block for each list cuts
// the work into slices while other blocks validate lengths and tables. Little work is done by a single launch of one block or one
// cluster. Attend kernels wait for this preparation, and write nothing if it found a broken rule. A kernel after the attend
// kernels fills rows that they do not write, if a call asks for such rows.
#include "backend/gpu/runtime.h"

#include <algorithm>

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/launches.h"
#include "backend/gpu/fill_rows.h"
#include "backend/gpu/reset.h"
#include "backend/gpu/schedule.h"
#include "backend/gpu/validate.h"
#include "plan/device_workspace.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = gpu::kScheduleThreads;
static_assert(kThreads == gpu::kValidateThreads && kThreads == gpu::kResetThreads);

__global__ void __launch_bounds__(kThreads) reset_kernel(const __grid_constant__ gpu::ResetArgs args) {
  wait_for_dependencies();
  let_dependents_start();
  gpu::reset(args);
}

bool has_masks(const gpu::AttendArgs& args) { return args.has_masks || args.key_begin.data != nullptr; }

/// Arguments as the instances for calls with or without masks know them. No copy is made: fields that are not set here are read
/// where they are. Code for masks makes the kernels half as long again, and a short call waits for it.
template <bool kMasks>
__device__ gpu::AttendArgs known(const gpu::AttendArgs& args) {
  gpu::AttendArgs known = args;
  if (!kMasks) {
    known.has_masks = false;
    known.key_begin.data = nullptr;
  }
  return known;
}

/// Reset and validate in one block: where there is little to validate, a launch costs more than what others would save.
template <bool kMasks>
__global__ void __launch_bounds__(kThreads)
    prepare_alone_kernel(const __grid_constant__ gpu::AttendArgs args, const __grid_constant__ gpu::ResetArgs leading) {
  wait_for_dependencies();
  let_dependents_start();
  gpu::reset(leading);
  __syncthreads();  // `broken` is 0 before it is set
  gpu::validate(known<kMasks>(args), 0, 1);
}

/// Lists to fill. All other arguments are those of the call: a launch with arguments of its own for each list takes longer.
struct Lists {
  gpu::WorkList work[plan_detail::kMaxLists];
  int count = 0;
};

/// A block for each list, and all others for validation.
template <bool kMasks>
__device__ void schedule_or_validate(const gpu::AttendArgs& args, const Lists& lists, gpu::SharedArea memory) {
  const int block = static_cast<int>(blockIdx.x);
  gpu::AttendArgs of_list = known<kMasks>(args);
  if (block >= lists.count) return gpu::validate(of_list, block - lists.count, static_cast<int>(gridDim.x) - lists.count);
  of_list.work = block == 0 ? lists.work[0] : lists.work[1];
  gpu::schedule(of_list, memory);
}

template <bool kMasks>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const __grid_constant__ gpu::AttendArgs args, const __grid_constant__ Lists lists) {
  QUIRE_SHARED(memory, gpu::kScheduleSharedBytes);
  let_dependents_start();
  wait_for_dependencies();
  schedule_or_validate<kMasks>(args, lists, gpu::SharedArea(memory));
}

/// Whole preparation in one launch of one cluster: no block may report a broken rule before the outcome is reset.
template <bool kMasks>
__global__ void __launch_bounds__(kThreads)
    prepare_together_kernel(const __grid_constant__ gpu::AttendArgs args, const __grid_constant__ Lists lists,
                            const __grid_constant__ gpu::ResetArgs leading) {
#if __CUDA_ARCH__ >= 900
  QUIRE_SHARED(memory, gpu::kScheduleSharedBytes);
  wait_for_dependencies();
  let_dependents_start();
  if (blockIdx.x == 0) gpu::reset(leading);
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  schedule_or_validate<kMasks>(args, lists, gpu::SharedArea(memory));
#endif
}

__global__ void __launch_bounds__(gpu::kFillThreads) fill_rows_kernel(const __grid_constant__ gpu::AttendArgs args) {
  gpu::fill_rows(args);
}

constexpr int kCluster = 8;  ///< blocks that every device with clusters can hold in one

/// Whether the current device has clusters: sm90 brought them, together with dependent launches.
bool has_clusters() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && has_dependent_launches(device);
}

/// Whether one cluster validates in about the time of a launch: a few rounds of its blocks, about 1 us each. Decode on Hopper has
/// no scheduler kernel and more time: it reads the verdict only after its first segment. More blocks would take places of
/// decode's blocks as these start (64 x 8k of e4m3fn on an H100: 367 us, and 385 beside 64 blocks).
bool is_little(std::int64_t validating, std::size_t num_lists) { return validating <= (num_lists == 0 ? 8 : 3) * kCluster; }

template <bool kMasks>
cudaError_t launch(const gpu::AttendArgs& args, std::span<const gpu::WorkList> lists, const gpu::ResetArgs& reset,
                   cudaStream_t stream) {
  constexpr std::int64_t kFewBlocks = 2;  // blocks' worth of validation that a single block does
  const std::int64_t validating = gpu::validate_blocks(args);
  if (lists.empty() && validating <= kFewBlocks)
    return launch_dependent(prepare_alone_kernel<kMasks>, {1, kThreads, 0}, stream, args, reset);
  Lists filled{{}, static_cast<int>(lists.size())};
  std::copy(lists.begin(), lists.end(), filled.work);
  if (is_little(validating, lists.size()) && has_clusters()) {
    const int blocks = filled.count + static_cast<int>(std::min<std::int64_t>(validating, kCluster - filled.count));
    return launch_dependent(prepare_together_kernel<kMasks>, {blocks, kThreads, 0, blocks}, stream, args, filled, reset);
  }
  if (const cudaError_t error = launch_dependent(reset_kernel, {1, kThreads, 0}, stream, reset); error != cudaSuccess)
    return error;
  const int blocks = filled.count + static_cast<int>(validating);
  return launch_dependent(prepare_kernel<kMasks>, {blocks, kThreads, 0}, stream, args, filled);
}

}  // namespace

cudaError_t launch_fill_rows(const gpu::AttendArgs& args, cudaStream_t stream) {
  fill_rows_kernel<<<static_cast<unsigned>(gpu::fill_blocks(args)), gpu::kFillThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_prepare(const gpu::AttendArgs& args, std::span<const gpu::WorkList> lists, const gpu::ResetArgs& reset,
                           cudaStream_t stream) {
  return has_masks(args) ? launch<true>(args, lists, reset, stream) : launch<false>(args, lists, reset, stream);
}

}  // namespace quire::cuda
