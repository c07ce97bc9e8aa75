// SPDX-License-Identifier: Apache-2.0
// The HIP runtime behind src/device: devices, addresses, copies. Failures are returned, never left pending for the next caller.
#include "device/runtime.h"

#include <mutex>

#include "backend/hip/api.h"
#include "backend/hip/entry.h"
#include "backend/hip/modules.h"
#include "text/formatted.h"

namespace quire::device {
namespace {

using quire::hip::Api;
using quire::hip::call;

Result<Device> describe(int ordinal) {
  quire::hip::DeviceProperties properties{};
  if (Status s = call(&Api::get_device_properties, "hipGetDeviceProperties", &properties, ordinal); !s.ok()) return s;
  Device device;
  device.name = quire::hip::target_of(properties.arch);
  device.backend = Backend::hip;
  device.num_threads = properties.num_compute_units;
  device.l2_bytes = properties.l2_bytes;
  device.ordinal = ordinal;
  device.product = properties.name;
  return device;
}

Status none_usable(const std::string& passed_over) {
  const std::string which = passed_over.empty()
                                ? "the driver lists none"
                                : formatted("this build has kernels for {}, not for {}", quire::hip::targets(), passed_over);
  return {Code::unsupported, "no AMD GPU can be used: " + which};
}

/// GPUs that a code object exists for, listed once because devices do not change while a process lives. Others are skipped: a
/// machine often has a small GPU in its processor beside a graphics card.
Result<std::vector<Device>> devices() {
  static std::mutex guard;
  static std::vector<Device> known;
  const std::lock_guard<std::mutex> locked(guard);
  if (!known.empty()) return known;
  if (const Result<const Api*> hip = quire::hip::api(); !hip.ok()) return hip.status();
  int count = 0;
  if (const Status s = call(&Api::get_device_count, "hipGetDeviceCount", &count); !s.ok())
    return Status(Code::unsupported, "no AMD GPU can be used: " + s.message());
  std::vector<Device> all;
  std::string passed_over;
  for (int i = 0; i < count; ++i) {
    Result<Device> device = describe(i);
    if (!device.ok()) return device.status();
    if (quire::hip::has_target(device->name))
      all.push_back(std::move(device).value());
    else
      passed_over += formatted("{}{} (GPU {}, {})", passed_over.empty() ? "" : ", ", device->name, i, device->product);
  }
  if (all.empty()) return none_usable(passed_over);
  known = all;
  return all;
}

Result<int> ordinal_of(const void* address) {
  quire::hip::PointerAttributes attributes{};
  if (Status s = call(&Api::pointer_get_attributes, "hipPointerGetAttributes", &attributes, address); !s.ok()) return s;
  if (attributes.type != quire::hip::kDeviceMemory && attributes.type != quire::hip::kManagedMemory)
    return Status(Code::invalid_argument, formatted("address {} is in no AMD GPU's memory", address));
  return attributes.device;
}

Status synchronize() { return call(&Api::device_synchronize, "hipDeviceSynchronize"); }

Status copy_to_host(void* to, const void* from, std::size_t bytes) {
  return call(&Api::memcpy, "hipMemcpy to the host", to, from, bytes, quire::hip::kDeviceToHost);
}

Status copy_to_device(void* to, const void* from, std::size_t bytes) {
  return call(&Api::memcpy, "hipMemcpy to the device", to, from, bytes, quire::hip::kHostToDevice);
}

Result<void*> allocate(std::size_t bytes) {
  void* address = nullptr;
  if (Status s = call(&Api::malloc, "hipMalloc", &address, bytes); !s.ok()) return s;
  return address;
}

void release(void* address) { (void)call(&Api::free, "hipFree", address); }

Result<bool> contents_are_finite(const Batch& batch, const KVCache& cache, const Options& options) {
  return gpu::contents_are_finite(quire::hip::kVendor, batch, cache, options);
}

}  // namespace

const Runtime kHipRuntime = {devices,        ordinal_of, synchronize, copy_to_host,
                             copy_to_device, allocate,   release,     contents_are_finite};

}  // namespace quire::device
