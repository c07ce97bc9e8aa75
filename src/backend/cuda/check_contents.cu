// SPDX-License-Identifier: Apache-2.0
// Stage: check() at depth contents on CUDA: src/backend/gpu/check_contents.h.
#include "backend/gpu/runtime.h"

#include <mutex>

#include "backend/cuda/launches.h"
#include "backend/gpu/check_contents.h"

namespace quire::cuda {
namespace {

/// Outcome in memory of each device: a static variable, because the library allocates nothing there.
__device__ gpu::Outcome answer;

__global__ void __launch_bounds__(gpu::kContentThreads) check_contents_kernel(const __grid_constant__ gpu::GenericArgs args) {
  gpu::check_contents(args);
}

}  // namespace

cudaError_t find_bad_contents(const gpu::GenericArgs& args, bool& found) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> locked(one_at_a_time);
  gpu::GenericArgs asked = args;
  void* address = nullptr;
  if (const cudaError_t e = cudaGetSymbolAddress(&address, answer); e != cudaSuccess) return e;
  asked.outcome = static_cast<gpu::Outcome*>(address);
  gpu::Outcome outcome;
  if (const cudaError_t e = cudaMemcpy(address, &outcome, sizeof outcome, cudaMemcpyHostToDevice); e != cudaSuccess) return e;
  check_contents_kernel<<<static_cast<unsigned>(gpu::contents_blocks(args)), gpu::kContentThreads>>>(asked);
  if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
  if (const cudaError_t e = cudaMemcpy(&outcome, address, sizeof outcome, cudaMemcpyDeviceToHost); e != cudaSuccess) return e;
  found = outcome.broken != 0;
  return cudaSuccess;
}

}  // namespace quire::cuda
