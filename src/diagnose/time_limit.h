// SPDX-License-Identifier: Apache-2.0
// The one clock of a diagnosis. Parts of the search run under it, and those that it cuts short are named in the report.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>

#include "quire/interrupt.hpp"

namespace quire::diagnose_detail {

class TimeLimit {
 public:
  /// A negative number of seconds never ends.
  explicit TimeLimit(double seconds) : seconds_(seconds), cpu_(cpu_seconds()) {}

  /// A limit of the time that is left, and of half of the whole time at least: a slow localisation of the wrong cells must not
  /// leave the search without time.
  TimeLimit rest() const {
    constexpr double kLeast = 0.5;
    TimeLimit left(seconds_ < 0 ? -1 : std::max(seconds_ - spent(), kLeast * seconds_));
    left.named_ = seconds_;
    return left;
  }
  /// A limit of a share of the time, from now on, but of no more than what is left.
  TimeLimit part(double share) const {
    return TimeLimit(seconds_ < 0 ? -1 : std::clamp(seconds_ - spent(), 0.0, share * seconds_));
  }
  /// The time that the caller gave.
  double named() const { return named_; }
  bool is_up() const { return seconds_ >= 0 && spent() >= seconds_; }
  /// Runs a part of the search. Returns false if time was up before the part or within it. Throws Interrupted if a scope of the
  /// caller ended.
  template <typename Work>
  bool run(Work&& work) const {
    if (is_up()) return false;
    InterruptScope* const outer = InterruptScope::current();
    const InterruptScope scope([](void* limit) { return static_cast<const TimeLimit*>(limit)->is_up(); },
                               const_cast<TimeLimit*>(this));
    try {
      work();
      return true;
    } catch (const Interrupted&) {
      if (outer != nullptr && outer->ended()) throw;
      return false;
    }
  }

 private:
  /// Seconds of the clock, but no more than the CPU seconds of the process: a search that waits for a busy machine gives the same
  /// report, later.
  double spent() const {
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start_;
    return std::min(wall.count(), cpu_seconds() - cpu_);
  }
  static double cpu_seconds() {
    std::timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double seconds_, cpu_, named_ = seconds_;
};

}  // namespace quire::diagnose_detail
