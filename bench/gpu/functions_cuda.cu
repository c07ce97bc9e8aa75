// SPDX-License-Identifier: Apache-2.0
// Errors of the approximate functions that the tensor-core kernels use, over every float in the range that they can meet, against
// f64 on the device; docs/reference/numerics.md says what the tolerances pay for. And where conversions have other bits than the
// portable ones: append()'s codes of every float and quotients of every 16-bit row by many scales, and cluster decode's f16 of
// every word of four codes. Prints one JSON; the exit status is 1 if a bit differs.
//
// usage: functions_cuda
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "backend/cuda/sm90/cluster/code_unit.h"
#include "backend/cuda/tile/logits.h"
#include "backend/gpu/append_words.h"

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
    mine = larger(mine, fabs(tile::ShortTanh::tanh(x) - tanh(static_cast<double>(x))));
  }
  keep_largest(worst, mine);
}

/// Floats whose code differs from fp8_encode(), all 2^32 of them, in the low and in the high half of a pair.
template <quire::DType kStored, class Format>
__global__ void code_differences(unsigned long long* found) {
  unsigned long long mine = 0;
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < std::uint64_t{1} << 32; i += step) {
    const float x = __uint_as_float(static_cast<std::uint32_t>(i)), other = __uint_as_float(static_cast<std::uint32_t>(~i));
    const unsigned pair = quire::gpu::encode_pair<kStored>(x, other);
    const unsigned expected = quire::semantics::fp8_encode<Format>(x) | quire::semantics::fp8_encode<Format>(other) << 8;
    mine += pair != expected;
  }
  if (mine > 0) atomicAdd(found, mine);
}

/// Quotients of every f16 and bf16 code that divide_all() gives other bits than a division. Scales: every 4099th mantissa of 2^-3
/// to 2^3, and every exponent.
__global__ void quotient_differences(unsigned long long* found) {
  unsigned long long mine = 0;
  for (std::uint32_t s = blockIdx.x; s < 14336 + 254; s += gridDim.x) {
    const std::uint32_t code = s < 14336 ? 0x3E000000u + 4099u * s : (s - 14336 + 1) << 23 | 0x00355555u;
    const float scale = __uint_as_float(code);
    for (std::uint32_t first = 8 * threadIdx.x; first < 1u << 17; first += 8 * blockDim.x) {
      float got[quire::gpu::kAppendDims], row[quire::gpu::kAppendDims];
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::uint32_t c = (first + i) & 0xFFFFu;
        row[i] = first >> 16 == 0 ? quire::gpu::decode_row<quire::DType::bf16>(c) : quire::gpu::decode_row<quire::DType::f16>(c);
        got[i] = row[i];
      }
      quire::gpu::divide_all(got, scale);
      for (std::uint32_t i = 0; i < 8; ++i) {
        const float expected = __fdiv_rn(row[i], scale);
        mine += __float_as_uint(got[i]) != __float_as_uint(expected) && expected == expected;
      }
    }
  }
  if (mine > 0) atomicAdd(found, mine);
}

/// Codes in words whose f16 is another value; NaN is one value. All 2^32 words, with the codes paired as of keys and as of
/// values.
template <bool kE4m3, class Format>
__global__ void word_differences(unsigned long long* found) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Products = sm90::cluster::CodeUnit<tile::F16, 128, kE4m3>;
  unsigned long long mine = 0;
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < std::uint64_t{1} << 32; i += step) {
    const auto word = static_cast<std::uint32_t>(i);
    const uint2 keys = Products::template pairs<1>(word), values = Products::template pairs<2>(word);
    for (int at = 0; at < 4; ++at) {
      const float expected = quire::semantics::fp8_decode<Format>(static_cast<std::uint8_t>(word >> 8 * at));
      const std::uint32_t of_keys = (at < 2 ? keys.x : keys.y) >> at % 2 * 16,
                          of_values = (at % 2 == 0 ? values.x : values.y) >> at / 2 * 16;
      for (const std::uint32_t f16 : {of_keys & 0xFFFFu, of_values & 0xFFFFu}) {
        const float converted = quire::gpu::decode_row<quire::DType::f16>(f16);
        mine += __float_as_uint(converted) != __float_as_uint(expected) && (converted == converted || expected == expected);
      }
    }
  }
  if (mine > 0) atomicAdd(found, mine);
#else
  *found = ~0ull;  // not compiled for Hopper: nothing was compared
#endif
}

template <typename Kernel>
unsigned long long count_of(Kernel* kernel) {
  unsigned long long *count, found = 0;
  must(cudaMalloc(&count, sizeof *count));
  must(cudaMemset(count, 0, sizeof *count));
  kernel<<<1024, 256>>>(count);
  must(cudaGetLastError());
  must(cudaMemcpy(&found, count, sizeof found, cudaMemcpyDeviceToHost));
  must(cudaFree(count));
  return found;
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
  std::printf(" \"ShortTanh::tanh on [0, inf), absolute\": %.4f,\n", worst_of(tanh_errors, bits(0.0f), bits(INFINITY)) / u);
  const unsigned long long e4m3 = count_of(code_differences<quire::DType::fp8_e4m3fn, quire::semantics::E4m3fn>);
  const unsigned long long e5m2 = count_of(code_differences<quire::DType::fp8_e5m2, quire::semantics::E5m2>);
  const unsigned long long quotients = count_of(quotient_differences);
  std::printf(
      " \"differences from the portable bits\": {\"e4m3fn, 2^32 floats\": %llu, \"e5m2, 2^32 floats\": %llu, "
      "\"quotients, 2^17 rows by 14590 scales\": %llu",
      e4m3, e5m2, quotients);
  unsigned long long words = 0;
  if (device.major == 9) {
    const unsigned long long of_e4m3 = count_of(word_differences<true, quire::semantics::E4m3fn>);
    const unsigned long long of_e5m2 = count_of(word_differences<false, quire::semantics::E5m2>);
    std::printf(", \"f16 of e4m3fn, 2^32 words\": %llu, \"f16 of e5m2, 2^32 words\": %llu", of_e4m3, of_e5m2);
    words = of_e4m3 + of_e5m2;
  }
  std::printf("}}\n");
  return e4m3 + e5m2 + quotients + words > 0 ? 1 : 0;
}
