// SPDX-License-Identifier: Apache-2.0
// One way to run a case, and the times of all ways, which take turns: whatever happens to the machine happens to all of them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bench/memory.h"
#include "bench/timing.h"
#include "quire/attention.hpp"
#include "quire/tools/bench.hpp"
#include "quire/tools/capture.hpp"

namespace quire::bench_detail {

/// The output of a case by its shape: dense, because a capture's own may be strided. It has no memory yet.
Tensor output_of(const Batch& batch, const KVCache& cache);

class Lane {
 public:
  /// Plans; fails with the plan's status (a refusal) or out_of_memory.
  static Result<Lane> make(const Case& c, const BenchVariant& variant);

  const Plan& plan() const { return plan_; }
  const BenchVariant& variant() const { return variant_; }
  /// One timed sample of `calls` calls, each on the next copy of the cache.
  Result<Sample> run(const Case& c, Rotation& rotation, std::int64_t calls);
  /// Fills the output with NaN.
  void poison();
  /// Whether the output has the bits of the first call of this function.
  bool same_bits_as_first();

  const Tensor& output() const { return output_; }
  const Tensor& lse() const { return lse_; }

 private:
  Lane() = default;

  BenchVariant variant_;
  Plan plan_;
  std::unique_ptr<Executor> executor_;
  std::vector<Memory> memory_;
  std::span<std::byte> workspace_;
  Tensor output_, lse_;
  std::vector<std::byte> first_;
};

/// The lanes that make(variant) could plan; the others become refused results.
template <class AnyLane, class Make>
std::vector<AnyLane> lanes_of(const std::vector<BenchVariant>& variants, Make&& make, BenchCaseResult& result) {
  std::vector<AnyLane> lanes;
  for (const BenchVariant& variant : variants) {
    Result<AnyLane> lane = make(variant);
    if (lane.ok()) {
      lanes.push_back(std::move(lane).value());
      continue;
    }
    result.results.push_back({.variant = variant, .status = BenchStatus::refused, .reason = lane.status().message()});
  }
  return lanes;
}

/// Median seconds of planning for this case, without the checks of the batch.
double plan_seconds(const Problem& problem, const BenchVariant& variant);

/// Measurements of one lane.
struct Timing {
  Interval seconds;
  std::vector<double> blocks;  ///< medians behind `seconds`
  BenchClock clock = BenchClock::wall;
  std::int64_t calls = 0, disturbed = 0;
  bool same_bits = true;
  Status status;  ///< status of the failed call, or OK
};

/// Times of a case: floors and verification are left out.
BenchResult timed_result(const BenchVariant& variant, const Plan& plan, const Timing& timing, const BenchCaseResult& of,
                         const Problem& problem);

inline constexpr std::size_t kBlocks = 15;  ///< blocks of samples of a result; each gives a median

/// Calls block(lane, round) for kBlocks rounds of all lanes. Every other round goes backwards, so that no lane always follows the
/// same neighbour. Calls `keep_going` before every round.
template <class Block>
void in_turns(std::size_t lanes, const std::function<bool()>& keep_going, Block&& block) {
  for (std::size_t round = 0; round < kBlocks && keep_going(); ++round)
    for (std::size_t turn = 0; turn < lanes; ++turn) block(round % 2 == 0 ? turn : lanes - 1 - turn, round);
}

/// Times all lanes in turns. Each lane gets up to 15 blocks of about seconds / 15, and at least 6. Calls during which the thread
/// was off its core are not counted; if hardly any call is left, a single thread's CPU time counts instead, and the clock says
/// so.
std::vector<Timing> time_in_turns(const Case& c, Rotation& rotation, std::vector<Lane>& lanes, double seconds,
                                  const std::function<bool()>& keep_going);

}  // namespace quire::bench_detail
