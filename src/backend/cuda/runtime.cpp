// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime behind src/device: devices, addresses, copies. Failures are returned, never left pending for the next caller.
#include "device/runtime.h"
#include "device/images.h"
#include "text/formatted.h"

#include <cuda_runtime_api.h>

#include <mutex>

#include "backend/cuda/entry.h"
#include "backend/cuda/error.h"

namespace quire::device {
namespace {

using quire::cuda::status_of;

/// Returns status_of() and clears the runtime's "last error", so that no later check reports it again.
Status checked(cudaError_t error, const char* what) {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return status_of(error, what);
}

Result<Device> describe(int ordinal) {
  cudaDeviceProp properties{};
  if (Status s = checked(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"); !s.ok()) return s;
  Device device;
  device.sm = 10 * properties.major + properties.minor;
  device.name = formatted("sm{}", device.sm);
  device.backend = Backend::cuda;
  device.num_threads = properties.multiProcessorCount;
  device.l2_bytes = properties.l2CacheSize;
  device.ordinal = ordinal;
  device.product = properties.name;
  return device;
}

/// Lists devices, once per process: cudaGetDeviceProperties is slow enough to show in every plan, and devices do not change.
Result<std::vector<Device>> devices() {
  static std::mutex guard;
  static std::vector<Device> known;
  const std::lock_guard<std::mutex> locked(guard);
  if (!known.empty()) return known;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return Status(Code::unsupported,
                  formatted("no CUDA device can be used: {} ({})", cudaGetErrorString(error), cudaGetErrorName(error)));
  }
  std::vector<Device> all;
  std::string left_out;
  for (int i = 0; i < count; ++i) {
    Result<Device> device = describe(i);
    if (!device.ok()) return device.status();
    if (has_image(QUIRE_CUDA_ARCHITECTURES, device->sm))
      all.push_back(std::move(device).value());
    else
      left_out += formatted("{}{} ({})", left_out.empty() ? "" : ", ", device->product, device->name);
  }
  if (all.empty() && !left_out.empty())
    return Status(Code::unsupported,
                  formatted("this build has kernels for CUDA architectures {}; the GPUs here are {}: build with "
                            "-DQUIRE_CUDA_ARCHITECTURES for them",
                            QUIRE_CUDA_ARCHITECTURES, left_out));
  if (all.empty()) return Status(Code::unsupported, "no CUDA device can be used: the driver lists none");
  known = all;
  return all;
}

Result<int> ordinal_of(const void* address) {
  cudaPointerAttributes attributes{};
  if (Status s = checked(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes"); !s.ok()) return s;
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    return Status(Code::invalid_argument, formatted("address {} is in no CUDA device's memory", address));
  return attributes.device;
}

Status synchronize() { return checked(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

Status copy_to_host(void* to, const void* from, std::size_t bytes) {
  return checked(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
}

Status copy_to_device(void* to, const void* from, std::size_t bytes) {
  return checked(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

Result<void*> allocate(std::size_t bytes) {
  void* address = nullptr;
  if (Status s = checked(cudaMalloc(&address, bytes), "cudaMalloc"); !s.ok()) return s;
  return address;
}

void release(void* address) { (void)cudaFree(address); }

Result<bool> contents_are_finite(const Batch& batch, const KVCache& cache, const Options& options) {
  return gpu::contents_are_finite(quire::cuda::kVendor, batch, cache, options);
}

}  // namespace

const Runtime kCudaRuntime = {devices,        ordinal_of, synchronize, copy_to_host,
                              copy_to_device, allocate,   release,     contents_are_finite};

}  // namespace quire::device
