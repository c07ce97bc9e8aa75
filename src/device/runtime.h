// SPDX-License-Identifier: Apache-2.0
// Services of a device for host code: the owner of an address, copies in and out of device memory, and the one question of
// check() that the device answers.
#pragma once

#include <cstddef>
#include <vector>

#include "quire/batch.hpp"
#include "quire/devices.hpp"
#include "quire/status.hpp"
#include "quire/tensor.hpp"

namespace quire::device {

/// One vendor's runtime. Every function reports the driver's own words with Code::device_error.
struct Runtime {
  /// Devices in the driver's order; `unsupported` with the driver's reason if there are none.
  Result<std::vector<Device>> (*devices)();
  /// Ordinal of the device that holds this address; invalid_argument if no device holds it.
  Result<int> (*ordinal_of)(const void* address);
  /// Waits for everything that was given to the current device.
  Status (*synchronize)();
  Status (*copy_to_host)(void* to, const void* from, std::size_t bytes);
  Status (*copy_to_device)(void* to, const void* from, std::size_t bytes);
  /// Allocates for tools (verify, bench); the library itself allocates nothing on a device. 0 bytes may give a null address.
  Result<void*> (*allocate)(std::size_t bytes);
  void (*release)(void* address);
  /// Whether all that attention would read of queries, keys and values is finite (Q-C01 to Q-C05). The batch breaks no rule of
  /// shapes, tables and scales. Waits for the answer.
  Result<bool> (*contents_are_finite)(const Batch& batch, const KVCache& cache, const Options& options);
};

/// Runtime of a memory; null for host memory and for memory that this build has no kernels for.
const Runtime* runtime_of(Memory memory) noexcept;
/// Whether this build can compute on tensors in this memory.
bool computes_in(Memory memory) noexcept;
Memory memory_of(Backend backend) noexcept;

/// GPU number `ordinal` in the order of the driver of this memory.
Result<Device> device_at(Memory memory, int ordinal);

#if QUIRE_HAS_CUDA
/// src/backend/cuda/runtime.cpp
extern const Runtime kCudaRuntime;
#endif
#if QUIRE_HAS_HIP
/// src/backend/hip/runtime.cpp
extern const Runtime kHipRuntime;
#endif

}  // namespace quire::device
