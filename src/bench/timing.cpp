// SPDX-License-Identifier: Apache-2.0
// See timing.h.
#include "bench/timing.h"

#include <algorithm>
#include <cmath>

#include <sys/resource.h>
#include <time.h>

namespace quire::bench_detail {
namespace {

constexpr double kOnCore = 0.97;  // a thread with less CPU time than this share of the wall's was off its core

double now(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::int64_t preemptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

constexpr double kOutside = 0.05;  // share of samples in both tails together
constexpr std::size_t kFewest = 6;

/// The largest k for which the median of n independent values lies between the k-th smallest and the k-th largest with 95 %:
/// the number of values below the median is binomial(n, 1/2) (David & Nagaraja, Order Statistics, 7.1).
std::size_t rank_of(std::size_t n) {
  double term = std::pow(0.5, static_cast<double>(n));  // P(none below)
  double tail = term;
  std::size_t k = 0;
  while (2 * tail <= kOutside && k < n / 2) {
    ++k;
    term *= static_cast<double>(n - k + 1) / static_cast<double>(k);
    tail += term;
  }
  return k;
}

}  // namespace

// The wall clock is read innermost, so that the reading of the others is no part of it.
Moment Moment::begin() {
  Moment m;
  m.preemptions = quire::bench_detail::preemptions();
  m.process_cpu = now(CLOCK_PROCESS_CPUTIME_ID);
  m.thread_cpu = now(CLOCK_THREAD_CPUTIME_ID);
  m.wall = now(CLOCK_MONOTONIC);
  return m;
}

Moment Moment::end() {
  Moment m;
  m.wall = now(CLOCK_MONOTONIC);
  m.thread_cpu = now(CLOCK_THREAD_CPUTIME_ID);
  m.process_cpu = now(CLOCK_PROCESS_CPUTIME_ID);
  m.preemptions = quire::bench_detail::preemptions();
  return m;
}

Sample sample_between(const Moment& begin, const Moment& end, std::int64_t calls, int threads) {
  const double wall = end.wall - begin.wall, cpu = end.thread_cpu - begin.thread_cpu;
  Sample sample{wall / static_cast<double>(calls), cpu / static_cast<double>(calls), cpu < kOnCore * wall};
  if (threads > 1) {
    // Threads also rest when there is nothing left to do; only together with a preemption does missing CPU time mean anything.
    const double process = end.process_cpu - begin.process_cpu;
    sample.disturbed = end.preemptions > begin.preemptions && process < kOnCore * wall * threads;
  }
  return sample;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Interval interval_of(const std::vector<double>& blocks) {
  if (blocks.empty()) return {};
  std::vector<double> sorted = blocks;
  std::sort(sorted.begin(), sorted.end());
  Interval interval{median(sorted), sorted.front(), sorted.back(), static_cast<std::int64_t>(sorted.size())};
  if (sorted.size() < kFewest) {
    const double length = interval.high - interval.low;
    interval.low = std::max(0.0, interval.low - length);
    interval.high += length;
    return interval;
  }
  const std::size_t k = std::max<std::size_t>(1, rank_of(sorted.size()));
  interval.low = sorted[k - 1];
  interval.high = sorted[sorted.size() - k];
  return interval;
}

}  // namespace quire::bench_detail
