// SPDX-License-Identifier: Apache-2.0
// What a GPU reaches: plain reads of several working sets, and multiply-adds in registers.
#pragma once

#include <vector>

#include "device/bench_probe.h"
#include "device/runtime.h"
#include "quire/bench.hpp"

namespace quire::benchmark {

/// The best of several trials. `rungs` ascending; where the device has no memory for the last, of what it has.
Result<Ceilings> measure_device_ceilings(const device::Runtime& runtime, const device::BenchProbe& probe,
                                         const std::vector<std::int64_t>& rungs);

}  // namespace quire::benchmark
