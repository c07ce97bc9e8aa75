// Stage: check() at depth contents on CUDA: src/backend/gpu/check_contents.h.
#include "backend/gpu/runtime.h"

#include <algorithm>
#include <mutex>

#include "backend/cuda/launches.h"
#include "backend/gpu/check_contents.h"

namespace quire::cuda {
namespace {

/// On every device one, because the library allocates nothing there.
__device__ gpu::Outcome answer;

__global__ void __launch_bounds__(gpu::kContentThreads) check_contents_kernel(const __grid_constant__ gpu::AttendArgs args) {
  gpu::check_contents(args);
}

}  // namespace

cudaError_t find_bad_contents(const gpu::AttendArgs& args, bool& found) {
  constexpr std::int64_t kMostBlocks = 4096;
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> locked(one_at_a_time);
  gpu::AttendArgs asked = args;
  void* address = nullptr;
  if (const cudaError_t e = cudaGetSymbolAddress(&address, answer); e != cudaSuccess) return e;
  asked.outcome = static_cast<gpu::Outcome*>(address);
  gpu::Outcome outcome;
  if (const cudaError_t e = cudaMemcpy(address, &outcome, sizeof outcome, cudaMemcpyHostToDevice); e != cudaSuccess) return e;
  const std::int64_t units = args.num_tokens + args.num_reqs * (args.block_table.columns / gpu::kContentColumns + 1);
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(units, 1, kMostBlocks));
  check_contents_kernel<<<blocks, gpu::kContentThreads>>>(asked);
  if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
  if (const cudaError_t e = cudaMemcpy(&outcome, address, sizeof outcome, cudaMemcpyDeviceToHost); e != cudaSuccess) return e;
  found = outcome.broken != 0;
  return cudaSuccess;
}

}  // namespace quire::cuda
