// SPDX-License-Identifier: Apache-2.0
// Errors of the approximate functions that the tensor-core kernels use, over every float in the range that they can meet, against
// f64 on the device. Prints one JSON; docs/reference/numerics.md says what the tolerances pay for.
//
// usage: functions_cuda
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "backend/cuda/mma/fold_tile.h"

namespace {

using namespace quire::cuda;

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "functions_cuda: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// Largest of non-negative numbers: their bits are ordered as they are.
__device__ void keep_largest(unsigned long long* at, double value) {
  atomicMax(at, static_cast<unsigned long long>(__double_as_longlong(value)));
}

/// The larger error; one that is NaN counts as infinite (fmax would pass over it).
__device__ double larger(double worst, double error) { return fmax(worst, error == error ? error : INFINITY); }

/// 2^x for x in [-126, 0], to which weights belong: relative error.
__global__ void exp2_errors(unsigned long long* worst, std::uint32_t first, std::uint32_t count) {
  double mine = 0.0;
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float x = __uint_as_float(first + i);
    const double exact = exp2(static_cast<double>(x));
    mine = larger(mine, fabs(ptx::exp2_approx(x) - exact) / exact);
  }
  keep_largest(worst, mine);
}

/// tanh of the soft cap for x >= 0 (it is odd by construction): absolute error.
__global__ void tanh_errors(unsigned long long* worst, std::uint32_t first, std::uint32_t count) {
  double mine = 0.0;
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float x = __uint_as_float(first + i);
    mine = larger(mine, fabs(mma::ShortTanh::tanh(x) - tanh(static_cast<double>(x))));
  }
  keep_largest(worst, mine);
}

std::uint32_t bits(float x) {
  std::uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}

template <typename Kernel>
double worst_of(Kernel* kernel, std::uint32_t first, std::uint32_t last) {
  unsigned long long* worst;
  must(cudaMalloc(&worst, sizeof *worst));
  must(cudaMemset(worst, 0, sizeof *worst));
  kernel<<<1024, 256>>>(worst, first, last - first + 1);
  must(cudaGetLastError());
  unsigned long long found = 0;
  must(cudaMemcpy(&found, worst, sizeof found, cudaMemcpyDeviceToHost));
  must(cudaFree(worst));
  double value;
  std::memcpy(&value, &found, sizeof value);
  return value;
}

}  // namespace

int main() {
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0));
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  const double u = 1.0 / (1 << 24);
  std::printf("{\"device\": \"%s\", \"date\": \"%s\", \"unit\": \"2^-24\",\n", device.name, date);
  std::printf(" \"exp2_approx on [-126, 0], relative\": %.4f,\n", worst_of(exp2_errors, bits(-0.0f), bits(-126.0f)) / u);
  std::printf(" \"ShortTanh::tanh on [0, inf), absolute\": %.4f}\n", worst_of(tanh_errors, bits(0.0f), bits(INFINITY)) / u);
}
