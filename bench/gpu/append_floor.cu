// SPDX-License-Identifier: Apache-2.0
// Floor of append(): times of the smallest kernels in its place, as GPU time of one launch in a captured graph of 64, with the
// attribute of append()'s launches. Prints one JSON: an empty kernel; one that reads a slot and a row and writes the row where
// the slot says; append() of bf16 rows by the library's kernels for words, and by its general one. docs/kernels/layouts.md has
// the figures.
//
// usage: append_floor
#include "backend/gpu/runtime.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include "backend/cuda/dependent_launch.h"
#include "backend/gpu/append.h"
#include "backend/gpu/append_words.h"

namespace {

using namespace quire;
using cuda::let_dependents_start;
using cuda::wait_for_dependencies;

constexpr int kHeads = 8, kDim = 128, kPage = 16, kPages = 512, kCaches = 16, kLaunches = 64, kReplays = 31;
constexpr int kMostTokens = 2048, kRow = kHeads * kDim;

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "append_floor: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// Early: the kernel behind may start before this one has waited for the kernel ahead.
template <bool kEarly>
__device__ void begin() {
  if (kEarly) let_dependents_start();
  wait_for_dependencies();
  if (!kEarly) let_dependents_start();
}

template <bool kEarly>
__global__ void empty(const __grid_constant__ gpu::AppendWords) {
  begin<kEarly>();
}

/// 16 bytes a thread, 128 threads a token.
template <bool kEarly>
__global__ void load_and_store(const __grid_constant__ gpu::AppendWords a) {
  if (kEarly) let_dependents_start();
  const unsigned item = blockIdx.x * blockDim.x + threadIdx.x;
  const auto* const row = reinterpret_cast<const gpu::AppendParts<16>*>(a.key.rows) + item;
  const auto* const at = reinterpret_cast<const std::uint32_t*>(a.slots) + item / 128;
  auto* const cache = reinterpret_cast<gpu::AppendParts<16>*>(a.key.cache) + item % 128;
  wait_for_dependencies();
  if (!kEarly) let_dependents_start();
  const gpu::AppendParts<16> word = gpu::load_now(row);
  cache[gpu::load_now(at) * 128] = word;
}

template <DType kStored, bool kColumns, bool kEarly>
__global__ void __launch_bounds__(gpu::kAppendWordThreads) words(const __grid_constant__ gpu::AppendWords a) {
  if (kEarly) let_dependents_start();
  gpu::append_words<DType::bf16, kStored, kColumns>(a, [] {
    wait_for_dependencies();
    if (!kEarly) let_dependents_start();
  });
}

template <bool kEarly>
__global__ void __launch_bounds__(gpu::kAppendThreads) general(const __grid_constant__ gpu::AppendArgs a) {
  begin<kEarly>();
  gpu::append(a);
}

/// Median microseconds of one of kLaunches launches.
double time_of(const std::function<cudaError_t(int, cudaStream_t)>& launch) {
  cudaStream_t stream;
  must(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kLaunches; ++i) must(launch(i % kCaches, stream));
  must(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t runnable;
  must(cudaGraphInstantiate(&runnable, graph, 0));
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  std::vector<float> found;
  for (int i = 0; i < kReplays + 3; ++i) {
    float ms = 0;
    must(cudaEventRecord(begin, stream));
    must(cudaGraphLaunch(runnable, stream));
    must(cudaEventRecord(end, stream));
    must(cudaStreamSynchronize(stream));
    must(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) found.push_back(ms);
  }
  must(cudaGraphExecDestroy(runnable));
  must(cudaGraphDestroy(graph));
  must(cudaEventDestroy(begin));
  must(cudaEventDestroy(end));
  must(cudaStreamDestroy(stream));
  std::nth_element(found.begin(), found.begin() + kReplays / 2, found.end());
  return static_cast<double>(found[kReplays / 2]) * 1000 / kLaunches;
}

struct Buffers {
  Buffers() {
    must(cudaMalloc(&rows, std::size_t{2} * kMostTokens * kRow));
    must(cudaMalloc(&caches, std::size_t{2} * 2 * kCaches * kPages * kPage * kRow));
    must(cudaMalloc(&slots, sizeof(std::int32_t) * kMostTokens));
    std::vector<std::uint16_t> bits(std::size_t{kMostTokens} * kRow);
    std::uint32_t state = 12345;
    for (std::uint16_t& one : bits) {  // both signs, exponents of 2^-7 to 2^0
      state = state * 1664525u + 1013904223u;
      one = static_cast<std::uint16_t>((state >> 16 & 0x83FFu) | 0x3C00u);
    }
    must(cudaMemcpy(rows, bits.data(), bits.size() * 2, cudaMemcpyHostToDevice));
    std::vector<std::int32_t> where(kMostTokens);
    for (int t = 0; t < kMostTokens; ++t) where[static_cast<std::size_t>(t)] = 900 + t;
    must(cudaMemcpy(slots, where.data(), sizeof(std::int32_t) * kMostTokens, cudaMemcpyHostToDevice));
  }
  void* rows = nullptr;
  std::uint8_t* caches = nullptr;
  void* slots = nullptr;
};

gpu::AppendArgs args_of(const Buffers& m, int tokens, int cache, DType stored, bool packed) {
  const std::int64_t bytes = stored == DType::bf16 ? 2 : 1, x = 16 / bytes, elements = std::int64_t{kPages} * kPage * kRow;
  const auto side = [&](int k) { return m.caches + (2 * cache + k) * elements * bytes; };
  gpu::AppendArgs a;
  a.num_tokens = tokens, a.num_kv_heads = kHeads, a.head_dim = kDim, a.page_size = kPage, a.num_pages = kPages;
  a.key = a.value = {m.rows, DType::bf16, {0, kDim, kRow, 0, 1, kDim}};
  a.cache_k = {side(0), stored, {kPage * kRow, kDim, kRow, 0, 1, kDim}};
  a.cache_v = {side(1), stored, {kPage * kRow, kDim, kRow, 0, 1, kDim}};
  if (packed) {
    a.cache_k.strides = {kPage * kRow, kPage * kDim, x, kPage * x, 1, x};
    a.cache_v.strides = {kPage * kRow, kPage * kDim, 1, 0, kPage, kDim};
  }
  a.slots = {m.slots, DType::i32, 1};
  return a;
}

template <class Kernel>
double words_time(Kernel* kernel, const Buffers& m, int tokens, DType stored, bool packed, int blocks = 0) {
  return time_of([&](int cache, cudaStream_t stream) {
    const gpu::AppendWords w = gpu::append_words_args(args_of(m, tokens, cache, stored, packed)).value();
    const int all = blocks > 0 ? blocks : static_cast<int>(gpu::append_word_blocks(w));
    return cuda::launch_dependent(kernel, {all, gpu::kAppendWordThreads, 0}, stream, w);
  });
}

template <class Kernel>
double general_time(Kernel* kernel, const Buffers& m, int tokens, DType stored, bool packed) {
  return time_of([&](int cache, cudaStream_t stream) {
    const gpu::AppendArgs a = args_of(m, tokens, cache, stored, packed);
    return cuda::launch_dependent(kernel, {static_cast<int>(gpu::append_blocks(a)), gpu::kAppendThreads, 0}, stream, a);
  });
}

}  // namespace

int main() {
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0));
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  std::printf("{\"device\": \"%s\", \"date\": \"%s\", \"unit\": \"us of the GPU per launch, graph of %d\", \"results\": [",
              device.name, date, kLaunches);
  const Buffers m;
  constexpr DType kB = DType::bf16, kF = DType::fp8_e4m3fn;
  for (const int tokens : {1, 64, 256, 2048}) {
    const int rows = tokens;  // one block of 128 threads a token, keys alone
    std::printf("%s\n {\"tokens\": %d, \"empty\": %.3f, \"empty, lets others start early\": %.3f, ", tokens == 1 ? "" : ",",
                tokens, words_time(empty<false>, m, tokens, kB, false, 2 * rows),
                words_time(empty<true>, m, tokens, kB, false, 2 * rows));
    std::printf("\"load and store\": %.3f, \"load and store, early\": %.3f, ",
                words_time(load_and_store<false>, m, tokens, kB, false, rows),
                words_time(load_and_store<true>, m, tokens, kB, false, rows));
    std::printf(
        "\"words\": %.3f, \"words, early\": %.3f, \"words e4m3\": %.3f, \"words e4m3, early\": %.3f, ",
        words_time(words<kB, false, false>, m, tokens, kB, false), words_time(words<kB, false, true>, m, tokens, kB, false),
        words_time(words<kF, false, false>, m, tokens, kF, false), words_time(words<kF, false, true>, m, tokens, kF, false));
    std::printf("\"packed, early\": %.3f, \"packed e4m3, early\": %.3f, ", words_time(words<kB, true, true>, m, tokens, kB, true),
                words_time(words<kF, true, true>, m, tokens, kF, true));
    std::printf("\"general\": %.3f, \"general, early\": %.3f, \"general e4m3\": %.3f, \"general packed\": %.3f}",
                general_time(general<false>, m, tokens, kB, false), general_time(general<true>, m, tokens, kB, false),
                general_time(general<false>, m, tokens, kF, false), general_time(general<false>, m, tokens, kB, true));
  }
  std::printf("\n]}\n");
}
