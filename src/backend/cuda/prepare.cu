// Stage: attend. What runs before every attend kernel: reset, then one launch in which a block for each list cuts the work into
// slices while the others validate lengths and tables. Neither waits for the other; an attend kernel waits for both, and writes
// nothing if one found a broken rule.
#include "backend/gpu/runtime.h"

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/launches.h"
#include "backend/gpu/schedule.h"
#include "backend/gpu/validate.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = gpu::kScheduleThreads;
static_assert(kThreads == gpu::kValidateThreads);

/// The kernel behind may start: it waits where it must. Before sm90 nothing starts early, and nothing needs to wait.
__device__ void let_dependents_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ void wait_for_dependencies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__global__ void __launch_bounds__(kThreads) reset_kernel(std::uint32_t* words, int count) {
  let_dependents_start();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) words[i] = 0;
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

}  // namespace

cudaError_t launch_reset(std::byte* workspace, std::size_t bytes, cudaStream_t stream) {
  reset_kernel<<<1, kThreads, 0, stream>>>(reinterpret_cast<std::uint32_t*>(workspace), static_cast<int>(bytes / 4));
  return cudaGetLastError();
}

cudaError_t launch_prepare(const gpu::AttendArgs& args, std::span<const gpu::AttendArgs> lists, cudaStream_t stream) {
  const int num_lists = static_cast<int>(lists.size());
  const int blocks = num_lists + static_cast<int>(gpu::validate_blocks(args));
  return launch_dependent(prepare_kernel, {blocks, kThreads, 0}, stream, args, lists.empty() ? args : lists.front(),
                          lists.empty() ? args : lists.back(), num_lists);
}

}  // namespace quire::cuda
