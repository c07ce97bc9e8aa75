// SPDX-License-Identifier: Apache-2.0
// The loops whose speed is a ceiling, one table per instruction set, and which of them this machine may run.
//
// Each loop does nothing but what it measures: a kernel that also computes something cannot be faster. Sums are returned so that
// no compiler can leave the work out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire::bench_detail {

/// One instruction set. All runs are whole multiples of 512 bytes, 64-byte aligned.
struct Loops {
  std::string_view name;
  /// Reads `bytes` bytes from `data` on, front to back.
  std::uint64_t (*read)(const std::byte* data, std::int64_t bytes);
  /// Reads `num_runs` runs of `run_bytes` that start at `runs[i]`. Eight runs are read by turns, a cache line each, while the
  /// next eight are prefetched to L2: no other loop read a paged cache in random page order faster.
  std::uint64_t (*gather)(const std::byte* const* runs, std::int64_t num_runs, std::int64_t run_bytes);
  /// `count` rounds of independent f32 multiply-adds.
  float (*fma)(std::int64_t count);
  /// FLOPs of one round: a multiply and an add per lane and accumulator.
  double fma_flops;
};

/// The best of the tables below that host_device() allows (QUIRE_CPU narrows it).
const Loops& host_loops();

const Loops& generic_loops();
const Loops& avx2_loops();    ///< x86 only
const Loops& avx512_loops();  ///< x86 only

/// Multiply-adds of bf16 pairs into f32 (VDPBF16PS).
struct Bf16Dot {
  float (*run)(std::int64_t count);
  double flops;  ///< floating-point operations of one round
};
/// Null if this machine has no such instruction.
const Bf16Dot* host_bf16_dot();
const Bf16Dot& avx512_bf16_dot();  ///< x86 only

/// Products of bf16 tiles into f32 tiles (TDPBF16PS).
const Bf16Dot* host_amx();
const Bf16Dot& amx_tiles();  ///< x86 only

}  // namespace quire::bench_detail
