// SPDX-License-Identifier: Apache-2.0
// Functions of a device for the bench, beside its Runtime: time by the device's clock, and loops that measure its ceilings.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "quire/status.hpp"
#include "quire/tensor.hpp"

namespace quire::device {

struct BenchProbe {
  /// Captures what `enqueue` gives to a stream in a graph, replays that `rounds` times, and returns the seconds of each replay.
  Result<std::vector<double>> (*replay_seconds)(const std::function<Status(void* stream)>& enqueue, int rounds);
  /// Reads all bytes once, front to back. `sink`: 4 bytes on the device.
  Status (*enqueue_read)(const void* data, std::int64_t bytes, void* sink, void* stream);
  /// Multiply-adds in registers: f32, or f16 with f32 sums on tensor cores. Returns how many FLOPs that is.
  Result<double> (*enqueue_multiply)(bool tensor_cores, void* sink, void* stream);
};

/// Probe of a memory; null if this build has no kernels for it.
const BenchProbe* bench_probe_of(Memory memory) noexcept;

#if QUIRE_HAS_CUDA
/// src/backend/cuda/bench.cu
extern const BenchProbe kCudaBenchProbe;
#endif

}  // namespace quire::device
