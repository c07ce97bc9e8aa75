// SPDX-License-Identifier: Apache-2.0
// See measure.h. Every ceiling is the best of many short trials: what disturbs a trial can only make it slower.
#include "bench/ceilings/measure.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <set>

#include "bench/ceilings/loops.h"
#include "bench/ceilings/team.h"

namespace quire::bench_detail {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kRun = 4096;             // a page of 16 tokens x 128 dims x 2 bytes
constexpr std::int64_t kTrialBytes = 4 * kMiB;  // bytes per thread and trial: few enough to fall between two disturbances
constexpr std::int64_t kSmallest = 64 << 10;
constexpr int kTrials = 24;  // trials of a ceiling, of which the best counts

std::atomic<std::uint64_t> sink;  // receives the loops' results, so that no compiler drops the loops

/// Writes back and drops the lines of [data, data + bytes). Where user code has no instruction for it, lines stay.
void flush(const std::byte* data, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  for (std::int64_t at = 0; at < bytes; at += kLine) {
#if defined(__x86_64__)
    __builtin_ia32_clflush(data + at);
#elif defined(__aarch64__)
    asm volatile("dc civac, %0" : : "r"(data + at) : "memory");
#endif
  }
#if defined(__x86_64__)
  __builtin_ia32_mfence();
#elif defined(__aarch64__)
  asm volatile("dsb sy" : : : "memory");
#endif
}

/// A thread's part of the working set, and how a trial walks it: a piece per trial, or all of it several times.
struct Part {
  std::int64_t bytes, piece, rounds;
};
Part part_of(std::int64_t working_set, int threads) {
  const std::int64_t unit = 8 * kRun;  // whole groups of runs
  const std::int64_t bytes = std::max(unit, working_set / threads / unit * unit);
  const std::int64_t piece = std::min(bytes, kTrialBytes);
  return {bytes, piece, std::max<std::int64_t>(1, kTrialBytes / 4 / piece)};
}

double gigabytes_per_second(const Part& part, int threads, double seconds) {
  return static_cast<double>(part.piece * part.rounds) * threads / seconds * 1e-9;
}

/// Piece `trial` of a part.
std::int64_t piece_at(const Part& part, int trial) { return trial % (part.bytes / part.piece) * part.piece; }

double stream(std::int64_t working_set, bool cold, int threads, const Memory& memory) {
  const Part part = part_of(working_set, threads);
  const Loops& loops = host_loops();
  const auto piece = [&](int thread, int trial) { return memory.data() + thread * part.bytes + piece_at(part, trial); };
  for (int thread = 0; cold && thread < threads; ++thread)
    for (int trial = 0; trial < kTrials; ++trial) flush(piece(thread, trial), part.piece);
  const double seconds = fastest_trial(threads, kTrials, [&](int thread, int trial) {
    for (std::int64_t r = 0; r < part.rounds; ++r) sink += loops.read(piece(thread, trial), part.piece);
  });
  return gigabytes_per_second(part, threads, seconds);
}

double gather(std::int64_t working_set, bool cold, int threads, const Memory& memory) {
  const Part part = part_of(working_set, threads);
  const Loops& loops = host_loops();
  std::vector<const std::byte*> runs;
  for (std::int64_t at = 0; at < part.bytes; at += kRun) runs.push_back(memory.data() + at);
  std::shuffle(runs.begin(), runs.end(), std::mt19937_64(1));
  std::vector<std::vector<const std::byte*>> of_thread;
  for (int t = 0; t < threads; ++t) {
    of_thread.push_back(runs);
    for (const std::byte*& run : runs) run += part.bytes;
  }
  const std::int64_t count = part.piece / kRun;
  const auto piece = [&](int thread, int trial) {
    return of_thread[static_cast<std::size_t>(thread)].data() + piece_at(part, trial) / kRun;
  };
  for (int thread = 0; cold && thread < threads; ++thread)
    for (int trial = 0; trial < kTrials; ++trial)
      for (std::int64_t i = 0; i < count; ++i) flush(piece(thread, trial)[i], kRun);
  const double seconds = fastest_trial(threads, kTrials, [&](int thread, int trial) {
    for (std::int64_t r = 0; r < part.rounds; ++r) sink += loops.gather(piece(thread, trial), count, kRun);
  });
  return gigabytes_per_second(part, threads, seconds);
}

/// GFLOP/s of a loop that does nothing but arithmetic; `count` rounds take about 2 ms.
double compute(float (*run)(std::int64_t), double flops, std::int64_t count, int threads) {
  const double seconds =
      fastest_trial(threads, kTrials, [&](int, int) { sink += static_cast<std::uint64_t>(std::abs(run(count)) < 1 ? 1 : 0); });
  return flops * static_cast<double>(count) * threads / seconds * 1e-9;
}

double apart(double a, double b) { return std::max(a, b) > 0 ? std::abs(a - b) / std::max(a, b) : 0; }

}  // namespace

std::int64_t cold_bytes(const BenchMachine& machine) {
  return std::clamp(2 * std::max(machine.l3_bytes, 16 * machine.l2_bytes), 256 * kMiB, 2048 * kMiB);
}

std::vector<std::int64_t> rungs_for(const std::vector<std::int64_t>& working_sets, std::int64_t cold) {
  std::set<std::int64_t> rungs = {cold};
  for (const std::int64_t bytes : working_sets) {
    if (bytes >= cold) continue;
    const auto below = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max(kSmallest, bytes))));
    const bool up = static_cast<double>(bytes) > std::sqrt(2.0) * static_cast<double>(below);
    rungs.insert(std::min(cold, up ? 2 * below : below));
  }
  return {rungs.begin(), rungs.end()};
}

Ceilings measure_ceilings(int threads, const std::vector<std::int64_t>& rungs, const Memory& memory) {
  Ceilings c;
  c.threads = threads;
  const Loops& loops = host_loops();
  c.loops = loops.name;
  for (const std::int64_t bytes : rungs) {
    // The largest set stands for memory: what other measurements have left in the caches must not help.
    const bool cold = bytes == rungs.back();
    c.reads.push_back({bytes, stream(bytes, cold, threads, memory), gather(bytes, cold, threads, memory)});
  }
  c.fma_gflops = compute(loops.fma, loops.fma_flops, 1'000'000, threads);
  if (const Bf16Dot* dot = host_bf16_dot()) c.bf16_dot_gflops = compute(dot->run, dot->flops, 400'000, threads);
  if (const Bf16Dot* amx = host_amx()) c.amx_gflops = compute(amx->run, amx->flops, 80'000, threads);
  if (threads > 1) c.ping_pong_ns = ping_pong_ns(threads);
  return c;
}

Ceilings better_of(const Ceilings& start, const Ceilings& end) {
  Ceilings c = start;
  const auto best = [&](double& value, double other) {
    c.drift = std::max(c.drift, apart(value, other));
    value = std::max(value, other);
  };
  for (std::size_t i = 0; i < c.reads.size(); ++i) {
    best(c.reads[i].stream_gbs, end.reads[i].stream_gbs);
    best(c.reads[i].gather_gbs, end.reads[i].gather_gbs);
  }
  best(c.fma_gflops, end.fma_gflops);
  best(c.bf16_dot_gflops, end.bf16_dot_gflops);
  best(c.amx_gflops, end.amx_gflops);
  best(c.mma_gflops, end.mma_gflops);
  c.drift = std::max(c.drift, apart(c.ping_pong_ns, end.ping_pong_ns));
  c.ping_pong_ns = std::min(c.ping_pong_ns, end.ping_pong_ns);
  return c;
}

const Ceilings::Read& rung_of(const Ceilings& ceilings, std::int64_t working_set) {
  const auto distance = [&](const Ceilings::Read& r) {
    return std::abs(std::log2(static_cast<double>(std::max<std::int64_t>(1, working_set))) -
                    std::log2(static_cast<double>(r.bytes)));
  };
  return *std::min_element(ceilings.reads.begin(), ceilings.reads.end(),
                           [&](const Ceilings::Read& a, const Ceilings::Read& b) { return distance(a) < distance(b); });
}

}  // namespace quire::bench_detail
