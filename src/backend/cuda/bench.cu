// SPDX-License-Identifier: Apache-2.0
// The loops of the bench's ceilings: a plain read, and multiply-adds in registers.
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/launches.h"
#include "backend/cuda/ptx.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 132 * 16;  // blocks for many waves on every device
constexpr int kRounds = 2048;

__global__ void __launch_bounds__(kThreads) read_all(const uint4* data, std::int64_t count, unsigned* sink) {
  unsigned x = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const uint4 v = data[i];
    x ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (x == 0x12345678u) *sink = x;  // a use of x keeps the compiler from dropping the loads
}

/// Eight independent accumulators a warp hide the latency of the instruction.
__global__ void __launch_bounds__(kThreads) multiply_f16(float* sink) {
  constexpr int kChains = 8;
  float sums[kChains][4] = {};
  const std::uint32_t a[4] = {threadIdx.x, 0, 0, 0};
  for (int i = 0; i < kRounds; ++i)
#pragma unroll
    for (int c = 0; c < kChains; ++c) ptx::mma_f16(sums[c], a, threadIdx.x, 0);
  float all = 0;
  for (int c = 0; c < kChains; ++c) all += sums[c][0] + sums[c][1] + sums[c][2] + sums[c][3];
  if (all == 12345.0f) *sink = all;
}

__global__ void __launch_bounds__(kThreads) multiply_f32(float* sink) {
  constexpr int kChains = 16;
  float sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = static_cast<float>(c);  // equal chains would be computed once
  const float a = static_cast<float>(threadIdx.x), b = static_cast<float>(blockIdx.x);
  for (int i = 0; i < kRounds; ++i)
#pragma unroll
    for (int c = 0; c < kChains; ++c) sums[c] = __fmaf_rn(sums[c], a, b);
  float all = 0;
  for (int c = 0; c < kChains; ++c) all += sums[c];
  if (all == 12345.0f) *sink = all;
}

}  // namespace

cudaError_t launch_read(const void* data, std::int64_t bytes, void* sink, cudaStream_t stream) {
  read_all<<<kBlocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, static_cast<unsigned*>(sink));
  return cudaGetLastError();
}

cudaError_t launch_multiply(bool tensor_cores, void* sink, double& flops, cudaStream_t stream) {
  auto* const to = static_cast<float*>(sink);
  if (tensor_cores)
    multiply_f16<<<kBlocks, kThreads, 0, stream>>>(to);
  else
    multiply_f32<<<kBlocks, kThreads, 0, stream>>>(to);
  const double of_a_warp = tensor_cores ? 8.0 * 2 * 16 * 8 * 16 : 16.0 * 2 * 32;
  flops = of_a_warp * kRounds * (kThreads / 32) * kBlocks;
  return cudaGetLastError();
}

}  // namespace quire::cuda
