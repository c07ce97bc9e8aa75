// SPDX-License-Identifier: Apache-2.0
// See lane.h.
#include "bench/lane.h"

#include <algorithm>
#include <cmath>

#include "bench/timing.h"

namespace quire::bench_detail {
namespace {

constexpr std::size_t kFewestBlocks = 6;    // blocks of a result
constexpr double kShortestSample = 100e-6;  // far above what reading the clocks costs

/// The blocks of one lane so far: a block's median by the wall without disturbed calls, by the wall with them, and by CPU time.
struct Blocks {
  std::vector<double> quiet, all, cpu;
};

struct Pace {
  std::int64_t calls_per_sample = 1;
  double block_seconds = 0;
  std::size_t blocks = kBlocks;
};

Pace pace_of(double call_seconds, double seconds) {
  Pace pace;
  pace.calls_per_sample = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(kShortestSample / call_seconds)));
  pace.block_seconds = seconds / static_cast<double>(kBlocks);
  const double affordable = seconds / std::max(call_seconds, pace.block_seconds);
  pace.blocks = static_cast<std::size_t>(std::clamp(affordable, double{kFewestBlocks}, double{kBlocks}));
  return pace;
}

/// One block: samples until its time is up, at least one.
Status run_block(const Case& c, Rotation& rotation, Lane& lane, const Pace& pace, Blocks& blocks, Timing& timing) {
  lane.poison();
  std::vector<double> quiet, all, cpu;
  for (double spent = 0; all.empty() || spent < pace.block_seconds;) {
    const Result<Sample> sample = lane.run(c, rotation, pace.calls_per_sample);
    if (!sample.ok()) return sample.status();
    spent += sample->seconds * static_cast<double>(pace.calls_per_sample);
    timing.calls += pace.calls_per_sample;
    if (sample->disturbed) timing.disturbed += pace.calls_per_sample;
    if (!sample->disturbed) quiet.push_back(sample->seconds);
    all.push_back(sample->seconds);
    cpu.push_back(sample->cpu_seconds);
  }
  if (!quiet.empty()) blocks.quiet.push_back(median(quiet));
  blocks.all.push_back(median(all));
  blocks.cpu.push_back(median(cpu));
  timing.same_bits = lane.same_bits_as_first() && timing.same_bits;
  return {};
}

/// The first call pays for page faults and sleeping threads; the better of two tells how long a call takes.
Result<double> call_seconds(const Case& c, Rotation& rotation, Lane& lane) {
  double best = 1e30;
  for (int i = 0; i < 2; ++i) {
    const Result<Sample> sample = lane.run(c, rotation, 1);
    if (!sample.ok()) return sample.status();
    best = std::min(best, sample->seconds);
  }
  return std::max(best, 1e-9);
}

void choose_clock(const Blocks& blocks, int threads, Timing& timing) {
  const bool enough = blocks.quiet.size() >= std::min(kFewestBlocks, blocks.all.size());
  timing.blocks = enough ? blocks.quiet : threads == 1 ? blocks.cpu : blocks.all;
  if (!enough && threads == 1) timing.clock = BenchClock::thread_cpu;
  timing.seconds = interval_of(timing.blocks);
}

}  // namespace

std::vector<Timing> time_in_turns(const Case& c, Rotation& rotation, std::vector<Lane>& lanes, double seconds,
                                  const std::function<bool()>& keep_going) {
  std::vector<Timing> timings(lanes.size());
  std::vector<Blocks> blocks(lanes.size());
  std::vector<Pace> paces(lanes.size());
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const Result<double> call = call_seconds(c, rotation, lanes[i]);
    if (!call.ok()) timings[i].status = call.status();
    if (call.ok()) paces[i] = pace_of(call.value(), seconds);
  }
  in_turns(lanes.size(), keep_going, [&](std::size_t i, std::size_t round) {
    if (timings[i].status.ok() && round < paces[i].blocks)
      timings[i].status = run_block(c, rotation, lanes[i], paces[i], blocks[i], timings[i]);
  });
  for (std::size_t i = 0; i < lanes.size(); ++i) choose_clock(blocks[i], lanes[i].variant().threads, timings[i]);
  return timings;
}

}  // namespace quire::bench_detail
