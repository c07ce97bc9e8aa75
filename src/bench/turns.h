// SPDX-License-Identifier: Apache-2.0
// Times the variants of a case in turns, so that whatever happens to the machine happens to all of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/lane.h"

namespace quire::bench_detail {

/// Measurements of one lane.
struct Timing {
  Interval seconds;
  std::vector<double> blocks;  ///< medians behind `seconds`
  BenchClock clock = BenchClock::wall;
  std::int64_t calls = 0, disturbed = 0;
  bool same_bits = true;
  Status status;  ///< status of the failed call, or OK
};

/// Times all lanes in turns. Each lane gets up to 15 blocks of about seconds / 15, and at least 6. Calls during which the thread
/// was off its core are not counted; if hardly any call is left, a single thread's CPU time counts instead, and the clock says
/// so. Calls `keep_going` before every round.
std::vector<Timing> time_in_turns(const Case& c, Rotation& rotation, std::vector<Lane>& lanes, double seconds,
                                  const std::function<bool()>& keep_going);

}  // namespace quire::bench_detail
