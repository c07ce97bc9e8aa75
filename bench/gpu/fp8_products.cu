// SPDX-License-Identifier: Apache-2.0
// How exactly Hopper's wgmma sums products of e4m3fn numbers, beside those of the same numbers as f16. Prints one JSON;
// docs/kernels/sm90_decode.md, "8-bit queries", says what follows.
//
// usage: fp8_products
//
//   bits    a product, or the accumulator, is 2^8, and one product 2^(8 - n): the largest n up to 17 that the sum shows
//   random  dot products of N(0,1) numbers, against f64: errors by the sum of the terms' magnitudes
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>

#include "backend/cuda/hopper/instructions.h"
#include "backend/cuda/hopper/wgmma_narrow.h"

namespace {

using namespace quire::cuda;

constexpr int kRows = 64, kColumns = 8, kMostDims = 256;

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "fp8_products: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// d += a * b for 64 x 32 and 32 x 8 codes.
__device__ void multiply_codes(float (&d)[4], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ float value_of(unsigned char code) {
  __nv_fp8_e4m3 number;
  number.__x = code;
  return static_cast<float>(number);
}

/// out[r][n] = first + sum of a[r][k] * b[n][k]; by 128 threads. b lies in core matrices of 8 rows x 16 bytes.
template <bool kF16>
__global__ void multiply(const unsigned char* a, const unsigned char* b, float first, float* out, int dims) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kBytes = kF16 ? 2 : 1, kStep = 32 / kBytes, kCore = 128;
  __shared__ alignas(1024) unsigned char tile[kColumns * kMostDims * kBytes];
  for (int i = static_cast<int>(threadIdx.x); i < kColumns * dims; i += 128) {
    const int at = i % dims * kBytes;
    unsigned char* const to = tile + at / 16 * kCore + i / dims * 16 + at % 16;
    if constexpr (kF16)
      *reinterpret_cast<__half*>(to) = __float2half(value_of(b[i]));
    else
      *to = b[i];
  }
  hopper::fence_shared();
  __syncthreads();
  const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4, column = lane % 4 * 2;
  float d[4] = {first, first, first, first};
  for (int k = 0; k < dims; k += kStep) {
    std::uint32_t words[4];
    for (int i = 0; i < 4; ++i) {
      const unsigned char* const from = a + (row + i % 2 * 8) * dims + k + (i / 2 * 16 + lane % 4 * 4) / kBytes;
      if constexpr (kF16) {
        const __half2 pair = __floats2half2_rn(value_of(from[0]), value_of(from[1]));
        words[i] = reinterpret_cast<const std::uint32_t&>(pair);
      } else {
        words[i] = *reinterpret_cast<const std::uint32_t*>(from);
      }
    }
    const std::uint64_t columns = hopper::matrix(hopper::Swizzle::none, tile + k * kBytes / 16 * kCore, kCore, kCore);
    hopper::wgmma_begin();
    if constexpr (kF16)
      hopper::wgmma<true, 0>(d, words, columns, 1);
    else
      multiply_codes(d, words, columns);
    hopper::wgmma_commit();
    hopper::wgmma_wait<0>();
  }
  for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * kColumns + column + i % 2] = d[i];
#endif
}

unsigned char code_of(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
double number_of(unsigned char code) {
  __nv_fp8_e4m3 number;
  number.__x = code;
  return static_cast<float>(number);
}

struct Operands {
  unsigned char *a = nullptr, *b = nullptr;
  float* out = nullptr;
  Operands() {
    must(cudaMallocManaged(&a, kRows * kMostDims));
    must(cudaMallocManaged(&b, kColumns * kMostDims));
    must(cudaMallocManaged(&out, kRows * kColumns * sizeof(float)));
  }
  void run(bool f16, float first, int dims) {
    (f16 ? multiply<true> : multiply<false>)<<<1, 128>>>(a, b, first, out, dims);
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());
  }
};

int bits_shown(Operands& o, bool f16, bool large_in_accumulator) {
  constexpr int kDims = 32;
  int shown = 0;
  for (int n = 1; n <= 17; ++n) {
    for (int i = 0; i < kRows * kDims; ++i) o.a[i] = 0;
    for (int i = 0; i < kColumns * kDims; ++i) o.b[i] = 0;
    if (!large_in_accumulator) o.a[0] = o.b[0] = code_of(16);
    const int exponent = 8 - n, of_a = exponent / 2;
    o.a[5] = code_of(std::ldexp(1.0f, of_a)), o.b[5] = code_of(std::ldexp(1.0f, exponent - of_a));
    o.run(f16, large_in_accumulator ? 256.0f : 0.0f, kDims);
    if (o.out[0] != 256.0f) shown = n;
  }
  return shown;
}

/// The largest error, and the root of the mean of squares, of 200 * 64 * 8 dot products.
struct Errors {
  double most = 0, rms = 0;
};
Errors random_errors(Operands& o, bool f16, int dims) {
  std::mt19937 random(12345);
  std::normal_distribution<float> normal;
  Errors errors;
  long count = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < kRows * dims; ++i) o.a[i] = code_of(normal(random));
    for (int i = 0; i < kColumns * dims; ++i) o.b[i] = code_of(normal(random));
    o.run(f16, 0.0f, dims);
    for (int at = 0; at < kRows * kColumns; ++at, ++count) {
      double sum = 0, magnitude = 0;
      for (int k = 0; k < dims; ++k) {
        const double term = number_of(o.a[at / kColumns * dims + k]) * number_of(o.b[at % kColumns * dims + k]);
        sum += term, magnitude += std::fabs(term);
      }
      const double error = std::fabs(o.out[at] - sum) / magnitude;
      errors.most = std::fmax(errors.most, error), errors.rms += error * error;
    }
  }
  errors.rms = std::sqrt(errors.rms / static_cast<double>(count));
  return errors;
}

}  // namespace

int main() {
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0));
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  const char* const commit = std::getenv("QUIRE_COMMIT");
  std::printf("{\"device\": \"%s\", \"date\": \"%s\", \"commit\": \"%s\", \"bits\": [", device.name, date,
              commit != nullptr ? commit : "unknown");
  Operands o;
  for (const bool f16 : {false, true})
    for (const bool accumulator : {false, true})
      std::printf("%s\n  {\"type\": \"%s\", \"large\": \"%s\", \"bits_shown\": %d}", f16 || accumulator ? "," : "",
                  f16 ? "f16" : "e4m3fn", accumulator ? "accumulator" : "product", bits_shown(o, f16, accumulator));
  std::printf("\n], \"random\": [");
  for (const int dims : {64, 128, 256})
    for (const bool f16 : {false, true}) {
      const Errors errors = random_errors(o, f16, dims);
      std::printf("%s\n  {\"type\": \"%s\", \"dims\": %d, \"most\": %.3g, \"rms\": %.3g}", f16 || dims > 64 ? "," : "",
                  f16 ? "f16" : "e4m3fn", dims, errors.most, errors.rms);
    }
  std::printf("\n]}\n");
  return 0;
}
