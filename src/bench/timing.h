// SPDX-License-Identifier: Apache-2.0
// Timing of calls: duration, whether the thread had its core for all of that time, and medians of durations.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/tools/bench.hpp"

namespace quire::bench_detail {

/// Time since some moment: the wall's, this thread's and this process's.
struct Moment {
  double wall = 0, thread_cpu = 0, process_cpu = 0;
  std::int64_t preemptions = 0;  ///< involuntary context switches of the process

  static Moment begin();
  static Moment end();
};

/// One timed sample of one or several equal calls.
struct Sample {
  double seconds = 0;      ///< wall time of one call
  double cpu_seconds = 0;  ///< the calling thread's
  bool disturbed = false;  ///< something else ran on one of its cores
};
Sample sample_between(const Moment& begin, const Moment& end, std::int64_t calls, int threads);

/// The middle value, or the mean of the two in the middle; 0 for none.
double median(std::vector<double> values);

/// The median of block medians and its 95 % confidence interval by order statistics: no assumption about how times are
/// distributed. With fewer than 6 blocks the interval is all that was seen, widened on both sides by its own length.
Interval interval_of(const std::vector<double>& blocks);

}  // namespace quire::bench_detail
