// SPDX-License-Identifier: Apache-2.0
// Lists the machine's GPUs that this build has kernels for.

#include "device/bench_probe.h"
#include "device/runtime.h"
#include "text/formatted.h"

namespace quire {
namespace device {

const Runtime* runtime_of(Memory memory) noexcept {
#if QUIRE_HAS_CUDA
  if (memory == Memory::cuda) return &kCudaRuntime;
#endif
#if QUIRE_HAS_HIP
  if (memory == Memory::hip) return &kHipRuntime;
#endif
  (void)memory;
  return nullptr;
}

const BenchProbe* bench_probe_of(Memory memory) noexcept {
#if QUIRE_HAS_CUDA
  if (memory == Memory::cuda) return &kCudaBenchProbe;
#endif
  (void)memory;
  return nullptr;
}

bool computes_in(Memory memory) noexcept { return memory == Memory::cpu || runtime_of(memory) != nullptr; }

Memory memory_of(Backend backend) noexcept {
  switch (backend) {
    case Backend::cpu: return Memory::cpu;
    case Backend::cuda: return Memory::cuda;
    case Backend::hip: return Memory::hip;
  }
  return Memory::cpu;
}

namespace {

constexpr Memory kGpuMemories[] = {Memory::cuda, Memory::hip};

Status no_gpu_kernels() {
  return {Code::unsupported,
          "this build has no GPU kernels: configure with -DQUIRE_CUDA=ON where there is a CUDA toolkit (nvcc), or with "
          "-DQUIRE_HIP=ON where there is clang-22 with lld-22"};
}

}  // namespace

Result<Device> device_at(Memory memory, int ordinal) {
  const Runtime* runtime = runtime_of(memory);
  if (runtime == nullptr) return no_gpu_kernels();
  Result<std::vector<Device>> found = runtime->devices();
  if (!found.ok()) return found.status();
  std::string usable;
  for (Device& device : found.value()) {
    if (device.ordinal == ordinal) return std::move(device);
    usable += formatted("{}{} ({})", usable.empty() ? "" : ", ", device.ordinal, device.name);
  }
  return Status(Code::unsupported,
                formatted("there is no {} GPU {} that this build has kernels for; there are {}", name(memory), ordinal, usable));
}

}  // namespace device

bool has_backend(Backend backend) noexcept { return device::computes_in(device::memory_of(backend)); }

std::vector<Device> gpu_devices() {
  std::vector<Device> all;
  for (const Memory memory : device::kGpuMemories) {
    const device::Runtime* runtime = device::runtime_of(memory);
    if (runtime == nullptr) continue;
    Result<std::vector<Device>> found = runtime->devices();
    if (found.ok()) all.insert(all.end(), found->begin(), found->end());
  }
  return all;
}

Result<Device> gpu_device(int ordinal) {
  std::string reasons;
  for (const Memory memory : device::kGpuMemories) {
    if (device::runtime_of(memory) == nullptr) continue;
    Result<Device> found = device::device_at(memory, ordinal);
    if (found.ok()) return found;
    reasons += (reasons.empty() ? "" : "; ") + found.status().message();
  }
  if (reasons.empty()) return device::no_gpu_kernels();
  return Status(Code::unsupported, reasons);
}

}  // namespace quire
