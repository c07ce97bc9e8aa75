// Stage: attention. append() and merge() on CUDA: src/backend/gpu/append.h and merge.h.
#include "backend/gpu/runtime.h"

#include "backend/cuda/launches.h"
#include "backend/gpu/append.h"
#include "backend/gpu/merge.h"

namespace quire::cuda {
namespace {

__global__ void __launch_bounds__(gpu::kAppendThreads) append_kernel(const __grid_constant__ gpu::AppendArgs args) {
  gpu::append(args);
}

__global__ void __launch_bounds__(gpu::kMergeThreads) merge_kernel(const __grid_constant__ gpu::MergeArgs args) {
  gpu::merge(args);
}

/// Blocks stride over the rest: more than fill the device gain nothing.
unsigned blocks_for(std::int64_t pieces) {
  constexpr std::int64_t kMaxBlocks = 8192;
  return static_cast<unsigned>(pieces < 1 ? 1 : pieces < kMaxBlocks ? pieces : kMaxBlocks);
}

}  // namespace

cudaError_t launch_append(const gpu::AppendArgs& args, cudaStream_t stream) {
  append_kernel<<<blocks_for(args.num_tokens), gpu::kAppendThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_merge(const gpu::MergeArgs& args, cudaStream_t stream) {
  constexpr std::int64_t kRowsAtOnce = gpu::kMergeThreads / gpu::kMergeLanes;
  const std::int64_t rows = static_cast<std::int64_t>(args.num_tokens) * args.num_heads;
  merge_kernel<<<blocks_for((rows + kRowsAtOnce - 1) / kRowsAtOnce), gpu::kMergeThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace quire::cuda
