// SPDX-License-Identifier: Apache-2.0
// CUDA's part of `quire bench`: graphs replayed and timed by events, and the loops of the ceilings.
#include "device/bench_probe.h"

#include <cuda_runtime_api.h>

#include "backend/cuda/error.h"
#include "backend/cuda/launches.h"

namespace quire::device {
namespace {

using quire::cuda::status_of;

/// Handles of the runtime, given back whatever happens.
struct Replay {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  Replay() = default;
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() {
    if (begin != nullptr) (void)cudaEventDestroy(begin);
    if (end != nullptr) (void)cudaEventDestroy(end);
    if (executable != nullptr) (void)cudaGraphExecDestroy(executable);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }

  Status capture(const std::function<Status(void*)>& enqueue) {
    if (Status s = status_of(cudaStreamCreate(&stream), "bench: cudaStreamCreate"); !s.ok()) return s;
    if (Status s = status_of(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "bench: beginning to capture");
        !s.ok())
      return s;
    const Status given = enqueue(stream);
    const Status ended = status_of(cudaStreamEndCapture(stream, &graph), "bench: ending the capture");
    if (!given.ok()) return given;
    if (!ended.ok()) return ended;
    if (Status s = status_of(cudaGraphInstantiate(&executable, graph, 0), "bench: cudaGraphInstantiate"); !s.ok()) return s;
    if (Status s = status_of(cudaEventCreate(&begin), "bench: cudaEventCreate"); !s.ok()) return s;
    return status_of(cudaEventCreate(&end), "bench: cudaEventCreate");
  }

  Result<double> once() const {
    float ms = 0;
    for (const cudaError_t e : {cudaEventRecord(begin, stream), cudaGraphLaunch(executable, stream), cudaEventRecord(end, stream),
                                cudaStreamSynchronize(stream), cudaEventElapsedTime(&ms, begin, end)})
      if (Status s = status_of(e, "bench: replaying a graph"); !s.ok()) return s;
    return static_cast<double>(ms) * 1e-3;
  }
};

Result<std::vector<double>> replay_seconds(const std::function<Status(void*)>& enqueue, int rounds) {
  constexpr int kWarmUp = 2;
  Replay replay;
  if (Status s = replay.capture(enqueue); !s.ok()) return s;
  std::vector<double> seconds;
  for (int i = 0; i < rounds + kWarmUp; ++i) {
    const Result<double> one = replay.once();
    if (!one.ok()) return one.status();
    if (i >= kWarmUp) seconds.push_back(one.value());
  }
  return seconds;
}

Status enqueue_read(const void* data, std::int64_t bytes, void* sink, void* stream) {
  return status_of(cuda::launch_read(data, bytes, sink, static_cast<cudaStream_t>(stream)), "bench: launching a plain read");
}

Result<double> enqueue_multiply(bool tensor_cores, void* sink, void* stream) {
  double flops = 0;
  const cudaError_t error = cuda::launch_multiply(tensor_cores, sink, flops, static_cast<cudaStream_t>(stream));
  if (Status s = status_of(error, "bench: launching multiply-adds"); !s.ok()) return s;
  return flops;
}

}  // namespace

const BenchProbe kCudaBenchProbe = {replay_seconds, enqueue_read, enqueue_multiply};

}  // namespace quire::device
