// Stage: attend. What runs before every attend kernel, in one launch: a block for each list cuts the work into slices, the others
// validate lengths and tables. Neither waits for the other; an attend kernel waits for both, and begins nothing if one found a
// broken rule.
#include "backend/gpu/runtime.h"

#include <algorithm>

#include "backend/cuda/launches.h"
#include "backend/gpu/schedule.h"
#include "backend/gpu/validate.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = gpu::kScheduleThreads;
static_assert(kThreads == gpu::kValidateThreads);

__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const __grid_constant__ gpu::AttendArgs first, const __grid_constant__ gpu::AttendArgs second, int num_lists) {
  QUIRE_SHARED(memory, gpu::kScheduleSharedBytes);
  const int block = static_cast<int>(blockIdx.x);
  if (block < num_lists)
    gpu::schedule(block == 0 ? first : second, gpu::SharedArea(memory));
  else
    gpu::validate(first, block - num_lists, static_cast<int>(gridDim.x) - num_lists);
}

}  // namespace

cudaError_t launch_prepare(std::span<const gpu::AttendArgs> lists, cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = 1024;
  const gpu::AttendArgs& args = lists.front();
  const std::int64_t units = args.num_reqs * (args.block_table.columns / gpu::kValidateColumns + 1);
  const int num_lists = static_cast<int>(lists.size());
  const int blocks = num_lists + static_cast<int>(std::clamp<std::int64_t>(units, 1, kMostBlocks));
  prepare_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args, lists.back(), num_lists);
  return cudaGetLastError();
}

}  // namespace quire::cuda
