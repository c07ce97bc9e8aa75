// SPDX-License-Identifier: Apache-2.0
// The ceilings of this machine, as a run measures them.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/memory.h"
#include "device/bench_probe.h"
#include "device/runtime.h"
#include "quire/tools/bench.hpp"

namespace quire::bench_detail {

/// A working set that no cache holds: what a decode step of a real model reads.
std::int64_t cold_bytes(const BenchMachine& machine);

/// The working sets that ceilings are measured for: powers of two near the cases' own, and cold_bytes(). Ascending.
std::vector<std::int64_t> rungs_for(const std::vector<std::int64_t>& working_sets, std::int64_t cold);

/// One measurement with this many threads. `memory` is at least as large as the largest rung, and written.
Ceilings measure_ceilings(int threads, const std::vector<std::int64_t>& rungs, const Memory& memory);

/// Nanoseconds that a cache line takes from one core to another, one way, the best of several series; 0 if this process may use
/// one core only.
double ping_pong_ns(int cores);

/// Measures the ceilings of a GPU: plain reads, and multiply-adds in registers.
/// The best of several trials. `rungs` ascending; where the device has no memory for the last, of what it has.
Result<Ceilings> measure_device_ceilings(const device::Runtime& runtime, const device::BenchProbe& probe,
                                         const std::vector<std::int64_t>& rungs);

/// The better of both, number by number, and how far they are apart.
Ceilings better_of(const Ceilings& start, const Ceilings& end);

/// The rung nearest to a working set.
const Ceilings::Read& rung_of(const Ceilings& ceilings, std::int64_t working_set);

}  // namespace quire::bench_detail
