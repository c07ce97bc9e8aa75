// SPDX-License-Identifier: Apache-2.0
// Ceilings of a GPU: plain reads of several working sets, and multiply-adds in registers.
#include "bench/ceilings/measure.h"

#include <algorithm>

#include "cases/device_case.h"

namespace quire::bench_detail {
namespace {

constexpr int kDeviceTrials = 24;  // trials of a ceiling, of which the best counts

/// Seconds of the fastest trial.
Result<double> best_of(const device::BenchProbe& probe, const std::function<Status(void*)>& enqueue) {
  const Result<std::vector<double>> seconds = probe.replay_seconds(enqueue, kDeviceTrials);
  if (!seconds.ok()) return seconds.status();
  return *std::min_element(seconds->begin(), seconds->end());
}

Result<double> gflops_of(const device::BenchProbe& probe, bool tensor_cores, void* sink) {
  double flops = 0;
  const Result<double> seconds = best_of(probe, [&](void* stream) -> Status {
    const Result<double> given = probe.enqueue_multiply(tensor_cores, sink, stream);
    if (!given.ok()) return given.status();
    flops = given.value();
    return {};
  });
  if (!seconds.ok()) return seconds.status();
  return flops / seconds.value() * 1e-9;
}

}  // namespace

Result<Ceilings> measure_device_ceilings(const device::Runtime& runtime, const device::BenchProbe& probe,
                                         const std::vector<std::int64_t>& rungs) {
  const Result<cases::DeviceBytes> sink = cases::DeviceBytes::make(runtime, sizeof(float));
  if (!sink.ok()) return sink.status();
  const Result<cases::DeviceBytes> memory = cases::DeviceBytes::make(runtime, static_cast<std::size_t>(rungs.back()));
  if (!memory.ok()) return memory.status();
  Ceilings c;
  c.threads = kWholeDevice;
  c.loops = "device";
  for (const std::int64_t bytes : rungs) {
    // A graph reads a small set several times, because the launch would take most of the time of one read. The set stays in
    // cache.
    const auto times = std::max<std::int64_t>(1, (std::int64_t{256} << 20) / bytes);
    const Result<double> seconds = best_of(probe, [&](void* stream) -> Status {
      for (std::int64_t i = 0; i < times; ++i)
        if (Status s = probe.enqueue_read(memory->data(), bytes, sink->data(), stream); !s.ok()) return s;
      return {};
    });
    if (!seconds.ok()) return seconds.status();
    c.reads.push_back({bytes, static_cast<double>(bytes * times) / seconds.value() * 1e-9, 0});
  }
  const Result<double> fma = gflops_of(probe, /*tensor_cores=*/false, sink->data()),
                       mma = gflops_of(probe, /*tensor_cores=*/true, sink->data());
  if (!fma.ok()) return fma.status();
  if (!mma.ok()) return mma.status();
  c.fma_gflops = fma.value();
  c.mma_gflops = mma.value();
  return c;
}

}  // namespace quire::bench_detail
