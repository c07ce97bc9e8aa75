// Stage: attend. The two kernels that run before every attend kernel: lengths and tables are validated, then cut into slices.
#include "backend/gpu/runtime.h"

#include "backend/cuda/launches.h"
#include "backend/gpu/schedule.h"
#include "backend/gpu/validate.h"

namespace quire::cuda {
namespace {

__global__ void __launch_bounds__(gpu::kValidateThreads) validate_kernel(const __grid_constant__ gpu::AttendArgs args) {
  gpu::validate(args);
}

/// One block for each list.
__global__ void __launch_bounds__(gpu::kScheduleThreads, 1)
    schedule_kernel(const __grid_constant__ gpu::AttendArgs first, const __grid_constant__ gpu::AttendArgs second) {
  QUIRE_SHARED(memory, gpu::kScheduleSharedBytes);
  gpu::schedule(blockIdx.x == 0 ? first : second, gpu::SharedArea(memory));
}

}  // namespace

cudaError_t launch_validate(const gpu::AttendArgs& args, cudaStream_t stream) {
  constexpr int kMaxBlocks = 1024;
  const int blocks = args.num_reqs < 1 ? 1 : args.num_reqs < kMaxBlocks ? args.num_reqs : kMaxBlocks;
  validate_kernel<<<blocks, gpu::kValidateThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_schedule(std::span<const gpu::AttendArgs> lists, cudaStream_t stream) {
  schedule_kernel<<<static_cast<unsigned>(lists.size()), gpu::kScheduleThreads, 0, stream>>>(lists.front(), lists.back());
  return cudaGetLastError();
}

}  // namespace quire::cuda
