// SPDX-License-Identifier: Apache-2.0
// Latency of a cache line from one core to another. Splits and merges of split-KV pay this latency; on rented machines it also
// shows whether two cores share a cache.
#include "bench/ceilings/measure.h"

#include <atomic>

#include "bench/ceilings/team.h"

namespace quire::bench_detail {
namespace {

constexpr int kTrips = 1000, kTrials = 20;

struct alignas(128) Ball {
  std::atomic<int> count{0};
};

/// Waits until the ball shows `count`; yields now and then so that a preempted partner can run.
void wait_for(const Ball& ball, int count) {
  for (int spin = 1; ball.count.load(std::memory_order_acquire) != count; ++spin)
    if (spin % 20000 == 0) std::this_thread::yield();
}

}  // namespace

double ping_pong_ns(int cores) {
  if (cores < 2) return 0;
  Ball ball;
  const double seconds = fastest_trial(2, kTrials, [&](int thread, int trial) {
    for (int i = 0; i < kTrips; ++i) {
      const int mine = 2 * (trial * kTrips + i) + thread;
      wait_for(ball, mine);
      ball.count.store(mine + 1, std::memory_order_release);
    }
  });
  return seconds / (2.0 * kTrips) * 1e9;
}

}  // namespace quire::bench_detail
