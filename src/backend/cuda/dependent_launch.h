// SPDX-License-Identifier: Apache-2.0
// Launches that may begin before the kernel ahead in the stream is done (programmatic dependent launch, PDL, sm90). Code that
// depends on the kernel ahead waits inside. Older devices get an ordinary launch.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace quire::cuda {

struct LaunchShape {
  int blocks = 1;
  int threads = 1;
  std::size_t shared_bytes = 0;
  int cluster = 1;           ///< blocks in a cluster; divides `blocks`
  int rows = 1, layers = 1;  ///< the grid is blocks x rows x layers
};

/// Whether a device has PDL. The driver is asked once per device, because every launch of every layer calls this.
inline bool has_dependent_launches(int device) {
  constexpr int kDevices = 64;                                    // devices with a known answer; others count as old
  static std::array<std::atomic<signed char>, kDevices> known{};  // 0 = not asked yet
  if (device >= kDevices) return false;
  std::atomic<signed char>& mine = known[static_cast<std::size_t>(device)];
  if (const signed char answer = mine.load(std::memory_order_relaxed); answer != 0) return answer > 0;
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return false;
  mine.store(major >= 9 ? 1 : -1, std::memory_order_relaxed);
  return major >= 9;
}

/// The kernel may use that much shared memory on the device, which is current; said once for each thread, kernel and device.
inline cudaError_t allow_shared_memory(const void* kernel, std::size_t bytes, int device) {
  struct Said {
    const void* kernel;
    int device;
    std::size_t bytes;
  };
  static thread_local std::array<Said, 16> said{};
  Said& mine = said[(reinterpret_cast<std::uintptr_t>(kernel) >> 4) % said.size()];
  if (mine.kernel == kernel && mine.device == device && mine.bytes == bytes) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) mine = {kernel, device, bytes};
  return error;
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                             const Arguments&... arguments) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (shape.shared_bytes > 0) {
    const cudaError_t set = allow_shared_memory(reinterpret_cast<const void*>(kernel), shape.shared_bytes, device);
    if (set != cudaSuccess) return set;
  }
  cudaLaunchAttribute attributes[2]{};
  int count = 0;
  if (has_dependent_launches(device)) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.rows), static_cast<unsigned>(shape.layers));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = static_cast<unsigned>(count);
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

#if defined(__CUDACC__)
/// Lets the next kernel in the stream start, which then waits for this one where it must. The first kernel of a call waits for
/// all earlier work before it lets the next one start, so that later kernels of the call read lengths, tables and tensors without
/// a wait. A call of a single kernel may let the next kernel start at once: that one is the first of another call, and waits.
/// Before sm90 no kernel starts early, and none needs to wait.
__device__ inline void let_dependents_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_dependencies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif

}  // namespace quire::cuda
