// SPDX-License-Identifier: Apache-2.0
// A context over the GPUs of one host, by NCCL: a thread for each GPU attends to the keys that it holds, one ncclAllGather
// carries the partial results, and merge_many() combines them in rank order. Calls are enqueued on the rank's stream.
//
//   NCCL_NVLS_ENABLE=0 nccl      each rank compares its row with one GPU's over all keys, and says "rank 1 of 2: right"
#include <cuda_runtime.h>
#include <nccl.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "quire/quire.hpp"

namespace {

using namespace quire;

constexpr std::int64_t kTokens = 3000, kPage = 16, kHeads = 32, kKvHeads = 8, kDim = 128;

/// A rank that fails ends the process: the others would wait for it.
void must(bool ok, const char* text) {
  if (!ok) std::fprintf(stderr, "%s\n", text), std::_Exit(1);
}
void must(const Status& status) { must(status.ok(), status.message().c_str()); }
void must(cudaError_t error) { must(error == cudaSuccess, cudaGetErrorString(error)); }
void must(ncclResult_t result) { must(result == ncclSuccess, ncclGetErrorString(result)); }
template <class T>
T must(Result<T> result) {
  must(result.status());
  return std::move(result).value();
}

/// A tensor of the current GPU, which lives until the process ends.
template <class... Dims>
Tensor on_gpu(const void* from, DType dtype, Dims... dims) {
  Tensor t = Tensor::contiguous(nullptr, dtype, dims...);
  t.memory = Memory::cuda;
  const auto bytes = static_cast<std::size_t>(t.num_elements() * itemsize(dtype));
  must(cudaMalloc(&t.data, bytes));
  if (from != nullptr) must(cudaMemcpy(t.data, from, bytes, cudaMemcpyHostToDevice));
  return t;
}
Tensor indices(const std::vector<std::int64_t>& values) { return on_gpu(values.data(), DType::i64, values.size()); }

/// N(0,1), the same on every rank.
Tensor normal(std::int64_t rows, std::int64_t heads, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> next;
  std::vector<float> values(static_cast<std::size_t>(rows * heads * kDim));
  for (float& value : values) value = next(bits);
  return on_gpu(values.data(), DType::f32, rows, heads, kDim);
}

/// What attention writes for one decode row.
struct Row {
  Tensor out = on_gpu(nullptr, DType::f32, 1, kHeads, kDim), lse = on_gpu(nullptr, DType::f32, 1, kHeads);
};

/// A decode row of one request over the keys that the shard holds.
void attend_to(const ContextShard& shard, const Row& row, cudaStream_t stream) {
  const std::int64_t pages = shard.local_length(kTokens) / kPage + 1;
  const KVCache cache{.k = on_gpu(nullptr, DType::f32, pages, kPage, kKvHeads, kDim),
                      .v = on_gpu(nullptr, DType::f32, pages, kPage, kKvHeads, kDim)};
  std::vector<std::int64_t> positions, table;
  for (std::int64_t t = 0; t < kTokens; ++t) positions.push_back(t);
  for (std::int64_t j = 0; j < pages; ++j) table.push_back(pages - 1 - j);
  const std::vector<std::int64_t> requests(kTokens, 0), starts = {0, 1}, lengths = {kTokens};
  const Tensor slots = indices(must(local_slots(shard, positions, requests, table, pages, kPage)));
  must(append(cache, normal(kTokens, kKvHeads, 2), normal(kTokens, kKvHeads, 3), slots, {.stream = stream}));
  const LocalLengths local = must(local_lengths(shard, starts, lengths));  // a decode row needs no masks
  Batch batch;
  batch.query = normal(1, kHeads, 1);
  batch.output = row.out;
  batch.lse = row.lse;
  batch.query_start_loc = indices(local.query_start_loc);
  batch.seq_lens = indices(local.seq_lens);
  batch.block_table = on_gpu(table.data(), DType::i64, 1, pages);
  const Plan how = must(plan(batch, cache, {}));
  const Tensor space = on_gpu(nullptr, DType::u8, workspace_bytes(how) + 1);
  must(attend(how, batch, cache, {}, {static_cast<std::byte*>(space.data), workspace_bytes(how)}, {.stream = stream}));
}

void run_rank(int rank, int world, ncclUniqueId id) {
  must(cudaSetDevice(rank));
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream));
  ncclComm_t comm = nullptr;
  must(ncclCommInitRank(&comm, world, id, rank));
  const Row mine, merged, whole;
  attend_to({.rank = rank, .world = world, .interleave = kPage}, mine, stream);
  const Tensor outs = on_gpu(nullptr, DType::f32, world, 1, kHeads, kDim), lses = on_gpu(nullptr, DType::f32, world, 1, kHeads);
  must(ncclGroupStart());
  must(ncclAllGather(mine.out.data, outs.data, kHeads * kDim, ncclFloat, comm, stream));
  must(ncclAllGather(mine.lse.data, lses.data, kHeads, ncclFloat, comm, stream));
  must(ncclGroupEnd());
  must(merge_many(outs, lses, merged.out, merged.lse, {.stream = stream}));
  attend_to({}, whole, stream);  // one rank that holds all keys
  std::vector<float> got(kHeads * kDim), expected(kHeads * kDim);
  must(cudaMemcpy(got.data(), merged.out.data, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
  must(cudaMemcpy(expected.data(), whole.out.data, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < got.size(); ++i) must(std::fabs(got[i] - expected[i]) < 1e-5F, "WRONG");
  std::printf("rank %d of %d: right\n", rank, world);
}

}  // namespace

int main() {
  int world = 0;
  if (cudaGetDeviceCount(&world) != cudaSuccess || world < 2) return std::printf("skipped: it needs two GPUs\n"), 0;
  ncclUniqueId id;
  must(ncclGetUniqueId(&id));
  std::vector<std::thread> ranks;
  for (int k = 0; k < world; ++k) ranks.emplace_back(run_rank, k, world, id);
  for (std::thread& each : ranks) each.join();
}
