// SPDX-License-Identifier: Apache-2.0
// See clocks.h.
#include "bench/clocks.h"

#include <ctime>

#include <sys/resource.h>

namespace quire::benchmark {
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

}  // namespace

// The wall clock is read innermost, so that the reading of the others is no part of it.
Moment Moment::begin() {
  Moment m;
  m.preemptions = quire::benchmark::preemptions();
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
  m.preemptions = quire::benchmark::preemptions();
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

}  // namespace quire::benchmark
