// SPDX-License-Identifier: Apache-2.0
// A variant of a case, ready to run: plan, threads, workspace and an output of its own.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bench/memory.h"
#include "bench/timing.h"
#include "quire/attention.hpp"
#include "quire/bench.hpp"
#include "quire/capture.hpp"

namespace quire::bench_detail {

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
    BenchResult refused;
    refused.variant = variant;
    refused.status = BenchStatus::refused;
    refused.reason = lane.status().message();
    result.results.push_back(std::move(refused));
  }
  return lanes;
}

/// Median seconds of planning for this case, without the checks of the batch.
double plan_seconds(const Problem& problem, const BenchVariant& variant);

}  // namespace quire::bench_detail
