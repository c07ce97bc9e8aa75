// SPDX-License-Identifier: Apache-2.0
// A rank of attend_sharded() over MPI. mpiexec -n N mpi_ranks right|fails|late: rank 0 prints "all ok" if every rank saw what
// it should.
//
//   right   every rank has the output of fp64 attention over all keys, by both exchanges
//   fails   rank 1 is refused before the exchange; every other rank is told why
//   late    rank 1 comes after the time limit; every other rank says so
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "quire/capture.hpp"
#include "quire/diagnose.hpp"
#include "quire/mpi.hpp"

namespace {

using quire::ContextShard;
using quire::DType;
using quire::Tensor;

constexpr std::int64_t kTokens = 37, kPage = 4, kHeads = 4, kKvHeads = 2, kDim = 16;

/// The keys of one request that a rank holds, dealt token by token.
struct Own {
  Own(const quire::Case& c, const ContextShard& shard) {
    const std::int64_t pages = shard.local_length(kTokens) / kPage + 1;
    k.assign(static_cast<std::size_t>(pages * kPage * kKvHeads * kDim), std::nanf(""));
    v = k;
    for (std::int64_t j = 0; j < pages; ++j) table.push_back(static_cast<std::int32_t>(pages - 1 - j));
    const auto* from_table = static_cast<const std::int32_t*>(c.batch.block_table.data);
    for (std::int64_t p = 0; p < kTokens; ++p) {
      if (!shard.holds(p)) continue;
      const std::int64_t j = shard.local_index(p), row = kKvHeads * kDim;
      const std::int64_t to = (table[static_cast<std::size_t>(j / kPage)] * kPage + j % kPage) * row;
      const std::int64_t from = (from_table[p / kPage] * kPage + p % kPage) * row;
      for (std::int64_t i = 0; i < row; ++i) {
        k[static_cast<std::size_t>(to + i)] = static_cast<const float*>(c.cache.k.data)[from + i];
        v[static_cast<std::size_t>(to + i)] = static_cast<const float*>(c.cache.v.data)[from + i];
      }
    }
    cache.k = Tensor::contiguous(k.data(), DType::f32, pages, kPage, kKvHeads, kDim);
    cache.v = Tensor::contiguous(v.data(), DType::f32, pages, kPage, kKvHeads, kDim);
    block_table = Tensor::contiguous(table.data(), DType::i32, std::int64_t{1}, pages);
  }
  std::vector<float> k, v;
  std::vector<std::int32_t> table;
  quire::KVCache cache;
  Tensor block_table;
};

quire::Status attend(quire::Communicator& group, const quire::Case& c, bool swap, bool broken, std::vector<float>& out) {
  const ContextShard shard{.rank = group.rank(), .world = group.world(), .interleave = broken ? 0 : 1, .span = 0};
  Own own(c, {.rank = group.rank(), .world = group.world(), .interleave = 1, .span = 0});
  quire::Batch batch;
  batch.query = c.batch.query;
  batch.query_start_loc = c.batch.query_start_loc;
  batch.seq_lens = c.batch.seq_lens;
  batch.block_table = own.block_table;
  out.assign(static_cast<std::size_t>(c.batch.query.num_elements()), std::nanf(""));
  batch.output = Tensor::contiguous(out.data(), DType::f32, c.batch.query.shape[0], kHeads, kDim);
  return quire::attend_sharded(group, shard, batch, own.cache, {}, {.swap_heads = swap});
}

bool is_right(const quire::Case& c, std::vector<float>& out) {
  const quire::Result<quire::Reference> expected = quire::reference(c.batch, c.cache, c.options);
  const Tensor seen = Tensor::contiguous(out.data(), DType::f32, c.batch.query.shape[0], kHeads, kDim);
  return expected.ok() && quire::compare(seen, {}, expected.value()).ok;
}

bool run(quire::Communicator& group, const std::string& scenario) {
  const quire::Result<quire::ProblemLine> line = quire::parse_problem_line("q=f32 heads=4:2 d=16 page=4 reqs=3@34 seed=3");
  if (!line.ok()) return false;
  const quire::Case c = quire::make_case(line.value()).value();
  std::vector<float> out;
  if (scenario == "right") {
    for (const bool swap : {false, true}) {
      if (swap && kHeads % group.world() != 0) continue;
      if (const quire::Status s = attend(group, c, swap, false, out); !s.ok() || !is_right(c, out)) return false;
    }
    return true;
  }
  if (scenario == "late" && group.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    return true;
  }
  const quire::Status s = attend(group, c, false, scenario == "fails" && group.rank() == 1, out);
  if (scenario == "fails" && group.rank() == 1) return s.rule() == "Q-D02";
  const char* const wanted = scenario == "late" ? ": rank 1 did not come within 1000 ms" : "rank 1 failed: ";
  return s.code() == quire::Code::rank_failed && s.message().find(wanted) != std::string::npos;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "right";
  MPI_Init(&argc, &argv);
  MPI_Comm verdicts;  // a communicator of its own: requests of a broken group are never met
  MPI_Comm_dup(MPI_COMM_WORLD, &verdicts);
  int rank = 0, ok = 0, all = 0;
  {
    quire::MpiCommunicator group(MPI_COMM_WORLD, std::chrono::milliseconds(scenario == "late" ? 1000 : 20000));
    rank = group.rank();
    ok = run(group, scenario) ? 1 : 0;
  }
  if (ok == 0) std::printf("WRONG: rank %d\n", rank);
  MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_MIN, verdicts);
  if (rank == 0 && all != 0) std::printf("all ok\n");
  std::fflush(stdout);
  MPI_Barrier(verdicts);                                  // the launcher kills all ranks when the first one has gone
  if (scenario != "right") std::_Exit(all != 0 ? 0 : 1);  // MPI_Finalize would wait for the broken group
  MPI_Comm_free(&verdicts);
  MPI_Finalize();
  return all != 0 ? 0 : 1;
}
