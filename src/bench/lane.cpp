// SPDX-License-Identifier: Apache-2.0
// See lane.h.
#include "bench/lane.h"

#include <algorithm>
#include <cstring>

#include "bench/timing.h"
#include "quire/plan.hpp"

namespace quire::bench_detail {
namespace {

constexpr int kPlansLane = 31;

std::int64_t num_bytes(const Tensor& t) { return t.present() ? t.num_elements() * itemsize(t.dtype) : 0; }

Tensor contiguous_like(const Tensor& t, void* data) {
  return t.present() ? Tensor::from_shape(data, t.dtype, t.shape, t.rank) : t;
}

PlanSettings settings_of(const BenchVariant& v) {
  return {.kernel = v.kernel, .batch_invariant = v.batch_invariant, .num_threads = v.threads};
}

}  // namespace

Tensor output_of(const Batch& batch, const KVCache& cache) {
  Tensor output = batch.query;
  output.dtype = batch.output.dtype;
  output.shape[2] = v_head_dim(cache);
  return output;
}

Result<Lane> Lane::make(const Case& c, const BenchVariant& variant) {
  Result<Plan> planned = quire::plan(c.batch, c.cache, c.options, settings_of(variant));
  if (!planned.ok()) return planned.status();
  Lane lane;
  lane.variant_ = variant;
  lane.plan_ = std::move(planned).value();
  const auto workspace = static_cast<std::int64_t>(workspace_bytes(lane.plan_));
  const Tensor output = output_of(c.batch, c.cache);
  for (const std::int64_t bytes : {workspace, num_bytes(output), num_bytes(c.batch.lse)}) {
    lane.memory_.emplace_back(std::max<std::int64_t>(64, bytes));
    if (lane.memory_.back().data() == nullptr) return Status(Code::out_of_memory, "bench: not enough memory for the workspace");
  }
  lane.workspace_ = {lane.memory_[0].data(), static_cast<std::size_t>(workspace)};
  lane.output_ = contiguous_like(output, lane.memory_[1].data());
  lane.lse_ = contiguous_like(c.batch.lse, lane.memory_[2].data());
  lane.executor_ = make_thread_pool(variant.threads);
  return lane;
}

Result<Sample> Lane::run(const Case& c, Rotation& rotation, std::int64_t calls) {
  Batch batch = c.batch;
  batch.output = output_;
  batch.lse = lse_;
  AttendOptions options;
  options.executor = executor_.get();
  const Moment begin = Moment::begin();
  for (std::int64_t i = 0; i < calls; ++i)
    if (const Status s = attend(plan_, batch, rotation.next(), c.options, workspace_, options); !s.ok()) return s;
  return sample_between(begin, Moment::end(), calls, variant_.threads);
}

void Lane::poison() {
  for (const Tensor& t : {output_, lse_})
    if (num_bytes(t) > 0)
      std::memset(t.data, 0xFF, static_cast<std::size_t>(num_bytes(t)));  // NaN in f32, f16, bf16 and fp8_e4m3fn
}

bool Lane::same_bits_as_first() {
  const auto* bytes = static_cast<const std::byte*>(output_.data);
  if (first_.empty()) first_.assign(bytes, bytes + num_bytes(output_));
  return std::equal(first_.begin(), first_.end(), bytes);
}

double plan_seconds(const Problem& problem, const BenchVariant& variant) {
  const Device device = host_device();
  std::vector<double> seconds;
  for (int i = 0; i < kPlansLane; ++i) {
    const Moment begin = Moment::begin();
    const Result<Plan> planned = quire::plan(problem, device, settings_of(variant));
    const Sample sample = sample_between(begin, Moment::end(), 1, 1);
    if (!planned.ok()) return 0;
    if (!sample.disturbed || i + 1 == kPlansLane) seconds.push_back(sample.seconds);
  }
  return median(std::move(seconds));
}

}  // namespace quire::bench_detail
