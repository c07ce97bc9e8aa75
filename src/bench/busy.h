// SPDX-License-Identifier: Apache-2.0
// Whether other processes disturbed a run so much that its times cannot be compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/bench.hpp"

namespace quire::benchmark {

/// What a run noticed of other processes.
struct Disturbance {
  std::int64_t calls = 0, disturbed = 0;  ///< of the result that was disturbed most
  double drift = 0;                       ///< largest of the ceilings
  double hop_ns = 0;                      ///< a cache line from core to core, one way; 0 = not measured
  double of_floor = 0;                    ///< largest share of the machine; more than 1 is impossible
};

/// One sentence that says why the run is not to be compared, or "" if it may be.
std::string busy_text(const Disturbance& d);
/// That sentence for a whole report.
std::string busy_text(const std::vector<Ceilings>& ceilings, const std::vector<BenchCaseResult>& cases);

}  // namespace quire::benchmark
