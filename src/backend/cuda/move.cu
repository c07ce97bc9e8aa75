// SPDX-License-Identifier: Apache-2.0
// Stage: attention. append(), merge() and merge_many() on CUDA: src/backend/gpu/append.h and merge.h.
#include "backend/gpu/runtime.h"

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/launches.h"
#include "backend/gpu/append.h"
#include "backend/gpu/merge.h"

namespace quire::cuda {
namespace {

__global__ void __launch_bounds__(gpu::kAppendThreads) append_kernel(const __grid_constant__ gpu::AppendArgs args) {
  wait_for_dependencies();  // for key and value, and for who reads the cache before
  let_dependents_start();
  gpu::append(args);
}

__global__ void __launch_bounds__(gpu::kMergeThreads) merge_kernel(const __grid_constant__ gpu::MergeArgs args) {
  gpu::merge(args);
}

__global__ void __launch_bounds__(gpu::kMergeThreads) merge_many_kernel(const __grid_constant__ gpu::MergeManyArgs args) {
  gpu::merge_many(args);
}

}  // namespace

cudaError_t launch_append(const gpu::AppendArgs& args, cudaStream_t stream) {
  return launch_dependent(append_kernel, {static_cast<int>(gpu::append_blocks(args)), gpu::kAppendThreads, 0}, stream, args);
}

cudaError_t launch_merge(const gpu::MergeArgs& args, cudaStream_t stream) {
  merge_kernel<<<static_cast<unsigned>(gpu::merge_blocks(args)), gpu::kMergeThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_merge_many(const gpu::MergeManyArgs& args, cudaStream_t stream) {
  merge_many_kernel<<<static_cast<unsigned>(gpu::merge_many_blocks(args)), gpu::kMergeThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace quire::cuda
