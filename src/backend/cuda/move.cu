// SPDX-License-Identifier: Apache-2.0
// Stage: attention. append(), derive_cached_lens(), merge() and merge_many() on CUDA: src/backend/gpu/append.h,
// append_four_bits.h, append_words.h, cached_lens.h and merge.h.
#include "backend/gpu/runtime.h"

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/launches.h"
#include "backend/gpu/append.h"
#include "backend/gpu/append_four_bits.h"
#include "backend/gpu/append_words.h"
#include "backend/gpu/cached_lens.h"
#include "backend/gpu/merge.h"

namespace quire::cuda {
namespace {

/// The kernel behind starts late: this one is long, and two of them share SMs badly (bench/results/h100-append.json).
__global__ void __launch_bounds__(gpu::kAppendThreads) append_kernel(const __grid_constant__ gpu::AppendArgs args) {
  wait_for_dependencies();
  let_dependents_start();
  gpu::append(args);
}

__global__ void __launch_bounds__(gpu::kAppendThreads) append_four_bits_kernel(const __grid_constant__ gpu::AppendArgs args) {
  wait_for_dependencies();
  let_dependents_start();
  gpu::append_four_bits(args);
}

/// Key, value and slots may come from the kernel ahead, and kernels before it may still read the cache: nothing is read or
/// written before the wait. The kernel behind may start at once, as the first of every call waits for this one before it lets
/// others start.
template <DType kRows, DType kStored, bool kColumns>
__global__ void __launch_bounds__(gpu::kAppendWordThreads) append_words_kernel(const __grid_constant__ gpu::AppendWords args) {
  let_dependents_start();
  gpu::append_words<kRows, kStored, kColumns>(args, [] { wait_for_dependencies(); });
}

template <DType kRows, DType kStored>
cudaError_t launch_words(const gpu::AppendWords& args, cudaStream_t stream) {
  const auto kernel =
      args.widest_run > 0 ? append_words_kernel<kRows, kStored, true> : append_words_kernel<kRows, kStored, false>;
  return launch_dependent(kernel, {static_cast<int>(gpu::append_word_blocks(args)), gpu::kAppendWordThreads, 0}, stream, args);
}

template <DType kRows>
cudaError_t launch_words(const gpu::AppendWords& args, cudaStream_t stream) {
  switch (args.stored) {
    case DType::fp8_e4m3fn: return launch_words<kRows, DType::fp8_e4m3fn>(args, stream);
    case DType::fp8_e5m2: return launch_words<kRows, DType::fp8_e5m2>(args, stream);
    default: return launch_words<kRows, kRows>(args, stream);
  }
}

__global__ void __launch_bounds__(gpu::kCachedLensThreads) cached_lens_kernel(const __grid_constant__ gpu::CachedLensArgs args) {
  let_dependents_start();
  wait_for_dependencies();
  gpu::derive_cached_lens(args);
}

__global__ void __launch_bounds__(gpu::kMergeThreads) merge_kernel(const __grid_constant__ gpu::MergeArgs args) {
  gpu::merge(args);
}

__global__ void __launch_bounds__(gpu::kMergeThreads) merge_many_kernel(const __grid_constant__ gpu::MergeManyArgs args) {
  gpu::merge_many(args);
}

}  // namespace

cudaError_t launch_append(const gpu::AppendArgs& args, cudaStream_t stream) {
  if (const std::optional<gpu::AppendWords> words = gpu::append_words_args(args))
    return words->rows == DType::bf16 ? launch_words<DType::bf16>(*words, stream) : launch_words<DType::f16>(*words, stream);
  const LaunchShape shape{static_cast<int>(gpu::append_blocks(args)), gpu::kAppendThreads, 0};
  if (gpu::appends_four_bits(args))
    if (const cudaError_t error = launch_dependent(append_four_bits_kernel, shape, stream, args); error != cudaSuccess)
      return error;
  return gpu::appends_others(args) ? launch_dependent(append_kernel, shape, stream, args) : cudaSuccess;
}

cudaError_t launch_cached_lens(const gpu::CachedLensArgs& args, cudaStream_t stream) {
  return launch_dependent(cached_lens_kernel, {static_cast<int>(gpu::cached_lens_blocks(args)), gpu::kCachedLensThreads, 0},
                          stream, args);
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
