// SPDX-License-Identifier: Apache-2.0
// bench() on a GPU: the same report, timed by the device itself.
#pragma once

#include <span>

#include "bench/driver.h"

namespace quire::benchmark {

/// options.device names a GPU backend. unsupported, with the reason, where there is none.
Result<BenchReport> run_on_device(std::span<const BenchInput> inputs, const BenchOptions& options);

}  // namespace quire::benchmark
