// SPDX-License-Identifier: Apache-2.0
// A context over the ranks of MPI: each rank appends and attends to the keys that it holds, one MPI_Allgather carries the partial
// results, and merge_many() combines them in rank order, so every rank has the same bits.
//
//   mpiexec -n 3 mpi      each rank compares its rows with attention over all keys, and says "rank 1 of 3: right"
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "quire/quire.hpp"

namespace {

using namespace quire;

constexpr std::int64_t kTokens = 37, kRows = 3, kPage = 4, kHeads = 4, kKvHeads = 2, kDim = 16;
constexpr std::int64_t kOut = kRows * kHeads * kDim,
                       kPart = kOut + kRows * kHeads;  // floats of an output; of a part, with its lse

/// A rank that fails ends the others, which would wait for it.
void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
}
template <class T>
T must(Result<T> result) {
  must(result.status());
  return std::move(result).value();
}

/// N(0,1), the same on every rank.
std::vector<float> numbers(std::int64_t count, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(bits);
  return values;
}

Tensor indices(std::vector<std::int64_t>& values) {
  return Tensor::contiguous(values.data(), DType::i64, static_cast<std::int64_t>(values.size()));
}

/// The last kRows rows of one request over the keys that the shard holds: outputs, then lse, in f32.
std::vector<float> attend_to(const ContextShard& shard) {
  std::vector<float> query = numbers(kOut, 1), key = numbers(kTokens * kKvHeads * kDim, 2),
                     value = numbers(kTokens * kKvHeads * kDim, 3);
  const std::int64_t pages = shard.local_length(kTokens) / kPage + 1;
  std::vector<float> k(static_cast<std::size_t>(pages * kPage * kKvHeads * kDim), std::nanf("")), v = k;
  KVCache cache;
  cache.k = Tensor::contiguous(k.data(), DType::f32, pages, kPage, kKvHeads, kDim);
  cache.v = Tensor::contiguous(v.data(), DType::f32, pages, kPage, kKvHeads, kDim);

  // New tokens: a slot on the rank that holds the position, -1 on the others, which append() skips.
  std::vector<std::int64_t> positions(kTokens), requests(kTokens, 0), table(static_cast<std::size_t>(pages));
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(table.rbegin(), table.rend(), 0);
  std::vector<std::int64_t> slots = must(local_slots(shard, positions, requests, table, pages, kPage));
  must(append(cache, Tensor::contiguous(key.data(), DType::f32, kTokens, kKvHeads, kDim),
              Tensor::contiguous(value.data(), DType::f32, kTokens, kKvHeads, kDim), indices(slots)));

  // The rows over this rank's keys: segments that are requests of their own, with the pages of theirs.
  const std::vector<std::int64_t> starts = {0, kRows}, lengths = {kTokens};
  LocalLengths local = must(local_lengths(shard, starts, lengths));
  std::vector<std::int64_t> tables;
  for (std::size_t segment = 0; segment < local.request.size(); ++segment)
    tables.insert(tables.end(), table.begin(), table.end());
  std::vector<float> part(kPart);
  Batch batch;
  batch.query = Tensor::contiguous(query.data(), DType::f32, kRows, kHeads, kDim);
  batch.output = Tensor::contiguous(part.data(), DType::f32, kRows, kHeads, kDim);
  batch.lse = Tensor::contiguous(part.data() + kOut, DType::f32, kRows, kHeads);
  batch.query_start_loc = indices(local.query_start_loc);
  batch.seq_lens = indices(local.seq_lens);
  batch.block_table = Tensor::contiguous(tables.data(), DType::i64, local.request.size(), pages);
  if (!local.causal.empty()) batch.causal = Tensor::contiguous(local.causal.data(), DType::u8, local.causal.size());
  if (!local.q_begin.empty()) batch.q_begin = indices(local.q_begin);
  if (!local.key_begin.empty()) batch.key_begin = indices(local.key_begin);
  const Plan how = must(plan(batch, cache, {}));
  Workspace workspace;
  must(attend(how, batch, cache, {}, workspace.at_least(workspace_bytes(how))));
  return part;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, world = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  const std::vector<float> part = attend_to({.rank = rank, .world = world, .interleave = kPage});
  std::vector<float> parts(static_cast<std::size_t>(world) * kPart), out(kOut);
  MPI_Allgather(part.data(), kPart, MPI_FLOAT, parts.data(), kPart, MPI_FLOAT, MPI_COMM_WORLD);
  Tensor outs = Tensor::contiguous(parts.data(), DType::f32, world, kRows, kHeads, kDim);
  Tensor lses = Tensor::contiguous(parts.data() + kOut, DType::f32, world, kRows, kHeads);
  outs.stride[0] = lses.stride[0] = kPart;
  must(merge_many(outs, lses, Tensor::contiguous(out.data(), DType::f32, kRows, kHeads, kDim), {}));

  const std::vector<float> whole = attend_to({});  // one rank that holds all keys
  float difference = 0;
  for (std::size_t i = 0; i < kOut; ++i) difference = std::fmax(difference, std::fabs(out[i] - whole[i]));
  const bool right = difference < 1e-5F;
  std::printf("rank %d of %d: %s\n", rank, world, right ? "right" : "WRONG");
  MPI_Finalize();
  return right ? 0 : 1;
}
