// SPDX-License-Identifier: Apache-2.0
// The body of the loops for vectors of kBytes bytes; a file per instruction set instantiates it with that set's flags.
// In an anonymous namespace: two instruction sets must not share one instantiation.
#pragma once

#include <cstdint>

#include "bench/ceilings/loops.h"

namespace quire::bench_detail {
namespace {

template <int kBytes>
struct Vector {
  using Bits [[gnu::vector_size(kBytes), gnu::may_alias]] = std::uint64_t;
  using Floats [[gnu::vector_size(kBytes)]] = float;
};

constexpr int kStreams = 8;  // accumulators, so that no addition waits for the one before
constexpr std::int64_t kLine = 64;

template <int kBytes>
std::uint64_t read_run(const std::byte* data, std::int64_t bytes) {
  using Bits = typename Vector<kBytes>::Bits;
  Bits sum[kStreams] = {};
  const auto* p = reinterpret_cast<const Bits*>(data);
  for (std::int64_t i = 0; i < bytes / kBytes; i += kStreams)
    for (int j = 0; j < kStreams; ++j) sum[j] ^= p[i + j];
  for (int j = 1; j < kStreams; ++j) sum[0] ^= sum[j];
  return sum[0][0] ^ sum[0][1];
}

template <int kBytes>
std::uint64_t read_gathered(const std::byte* const* runs, std::int64_t num_runs, std::int64_t run_bytes) {
  using Bits = typename Vector<kBytes>::Bits;
  Bits sum[kStreams] = {};
  for (std::int64_t first = 0; first + kStreams <= num_runs; first += kStreams) {
    const std::byte* const* now = runs + first;
    const std::byte* const* next = first + 2 * kStreams <= num_runs ? now + kStreams : now;
    for (std::int64_t at = 0; at < run_bytes; at += kLine)
      for (int j = 0; j < kStreams; ++j) {
        __builtin_prefetch(next[j] + at, /*rw=*/0, /*locality=*/2);
        for (std::int64_t b = 0; b < kLine; b += kBytes) sum[j] ^= *reinterpret_cast<const Bits*>(now[j] + at + b);
      }
  }
  for (int j = 1; j < kStreams; ++j) sum[0] ^= sum[j];
  return sum[0][0] ^ sum[0][1];
}

constexpr int kAccumulators = 12;  // latency 4 cycles x 2 per cycle, and some to spare

template <int kBytes>
float multiply_add(std::int64_t count) {
  using Floats = typename Vector<kBytes>::Floats;
  volatile float opaque_factor = 0.999f, opaque_term = 0.001f;
  const Floats factor = Floats{} + opaque_factor, term = Floats{} + opaque_term;
  Floats sum[kAccumulators];
  for (int j = 0; j < kAccumulators; ++j) sum[j] = term + static_cast<float>(j);
  for (std::int64_t i = 0; i < count; ++i)
    for (int j = 0; j < kAccumulators; ++j) sum[j] = sum[j] * factor + term;
  for (int j = 1; j < kAccumulators; ++j) sum[0] += sum[j];
  return sum[0][0];
}

template <int kBytes>
constexpr Loops loops_of(std::string_view name) {
  constexpr int kFloats = kBytes / 4;
  return {name, read_run<kBytes>, read_gathered<kBytes>, multiply_add<kBytes>, 2.0 * kAccumulators * kFloats};
}

}  // namespace
}  // namespace quire::bench_detail
