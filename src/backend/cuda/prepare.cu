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

namespace quire::cuda {
namespace {

constexpr int kThreads = gpu::kScheduleThreads;
static_assert(kThreads == gpu::kValidateThreads && kThreads == gpu::kResetThreads);

__global__ void __launch_bounds__(kThreads) reset_kernel(const __grid_constant__ gpu::ResetArgs args) {
  wait_for_dependencies();
  let_dependents_start();
  gpu::reset(args);
}

/// Reset and validate in one block: where there is little to validate, a launch costs more than what others would save.
__global__ void __launch_bounds__(kThreads)
    prepare_alone_kernel(const __grid_constant__ gpu::AttendArgs args, const __grid_constant__ gpu::ResetArgs leading) {
  wait_for_dependencies();
  let_dependents_start();
  gpu::reset(leading);
  __syncthreads();  // `broken` is 0 before it is set
  gpu::validate(args, 0, 1);
}

__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const __grid_constant__ gpu::AttendArgs args, const __grid_constant__ gpu::AttendArgs first,
                   const __grid_constant__ gpu::AttendArgs second, int num_lists) {
  QUIRE_SHARED(memory, gpu::kScheduleSharedBytes);
  let_dependents_start();
  wait_for_dependencies();
  const int block = static_cast<int>(blockIdx.x);
  if (block < num_lists)
    gpu::schedule(block == 0 ? first : second, gpu::SharedArea(memory));
  else
    gpu::validate(args, block - num_lists, static_cast<int>(gridDim.x) - num_lists);
}

/// Whole preparation in one launch of one cluster: no block may report a broken rule before the outcome is reset.
__global__ void __launch_bounds__(kThreads)
    prepare_together_kernel(const __grid_constant__ gpu::AttendArgs args, const __grid_constant__ gpu::AttendArgs first,
                            const __grid_constant__ gpu::AttendArgs second, int num_lists,
                            const __grid_constant__ gpu::ResetArgs leading) {
#if __CUDA_ARCH__ >= 900
  QUIRE_SHARED(memory, gpu::kScheduleSharedBytes);
  wait_for_dependencies();
  let_dependents_start();
  const int block = static_cast<int>(blockIdx.x);
  if (block == 0) gpu::reset(leading);
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (block < num_lists)
    gpu::schedule(block == 0 ? first : second, gpu::SharedArea(memory));
  else
    gpu::validate(args, block - num_lists, static_cast<int>(gridDim.x) - num_lists);
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
/// no scheduler kernel and more time: it reads the verdict only after its first segment.
bool is_little(std::int64_t validating, std::size_t num_lists) { return validating <= (num_lists == 0 ? 8 : 3) * kCluster; }

}  // namespace

cudaError_t launch_fill_rows(const gpu::AttendArgs& args, cudaStream_t stream) {
  fill_rows_kernel<<<static_cast<unsigned>(gpu::fill_blocks(args)), gpu::kFillThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_prepare(const gpu::AttendArgs& args, std::span<const gpu::AttendArgs> lists, const gpu::ResetArgs& reset,
                           cudaStream_t stream) {
  constexpr std::int64_t kFewBlocks = 2;  // blocks' worth of validation that a single block does
  const std::int64_t validating = gpu::validate_blocks(args);
  if (lists.empty() && validating <= kFewBlocks)
    return launch_dependent(prepare_alone_kernel, {1, kThreads, 0}, stream, args, reset);
  if (is_little(validating, lists.size()) && has_clusters()) {
    const int num_lists = static_cast<int>(lists.size());
    const int blocks = num_lists + static_cast<int>(std::min<std::int64_t>(validating, kCluster - num_lists));
    return launch_dependent(prepare_together_kernel, {blocks, kThreads, 0, blocks}, stream, args,
                            lists.empty() ? args : lists.front(), lists.empty() ? args : lists.back(), num_lists, reset);
  }
  if (const cudaError_t error = launch_dependent(reset_kernel, {1, kThreads, 0}, stream, reset); error != cudaSuccess)
    return error;
  const int num_lists = static_cast<int>(lists.size());
  const int blocks = num_lists + static_cast<int>(validating);
  return launch_dependent(prepare_kernel, {blocks, kThreads, 0}, stream, args, lists.empty() ? args : lists.front(),
                          lists.empty() ? args : lists.back(), num_lists);
}

}  // namespace quire::cuda
