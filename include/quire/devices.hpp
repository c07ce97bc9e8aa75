// SPDX-License-Identifier: Apache-2.0
// Devices as planning sees them: this machine's, and pretended ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/status.hpp"

namespace quire {

enum class Backend : std::int32_t { cpu = 0, cuda = 1, hip = 2 };
std::string_view name(Backend backend) noexcept;  ///< "cpu", "cuda", "hip"; else "invalid"

/// CPU instruction-set features that kernels may ask for (bit mask).
enum CpuFeature : std::uint32_t {
  kAvx2 = 1u << 0,        ///< AVX2 + FMA + F16C
  kAvx512 = 1u << 1,      ///< AVX-512 F, BW, VL, DQ (implies kAvx2)
  kAvx512Bf16 = 1u << 2,  ///< AVX512-BF16
  kNeon = 1u << 3,
  kAmxBf16 = 1u << 4,  ///< AMX tiles with bf16 products, and AVX512-VBMI (implies kAvx512Bf16)
  /// VDPBF16PS runs at the rate of an FMA, with twice its products (AMD); Intel runs VDPBF16PS at half that rate. This bit names
  /// no instruction set: it is a preference of planning.
  kFastBf16Dot = 1u << 5,
};

/// A device as planning sees it: real (host_device, gpu_device) or pretended (find_device).
struct Device {
  std::string name;  ///< "scalar", "avx2", "avx512", "avx512bf16", "sm90", "gfx942", ...
  Backend backend = Backend::cpu;
  std::uint32_t cpu_features = 0;
  int num_threads = 1;              ///< threads (CPU), SMs or CUs (GPU)
  std::int64_t l2_bytes = 1 << 20;  ///< L2 bytes of a core (CPU) or of the device (GPU)
  int sm = 0;                       ///< CUDA compute capability, 10 * major + minor; 0 for all others
  int ordinal = -1;                 ///< number of this machine's GPU; -1 for CPUs and pretended devices
  std::string product;              ///< driver's name of the device; empty for CPUs and architectures such as sm90
  bool operator==(const Device&) const = default;
};
/// This machine's CPU, features read with CPUID once. QUIRE_CPU=scalar|avx2|avx512|avx512bf16|amx removes features, never adds.
Device host_device();
/// Whether this build has kernels for a backend. A build without such kernels still plans for pretended devices of the backend.
bool has_backend(Backend backend) noexcept;
/// This machine's GPUs that this build has kernels for, in the driver's order; empty if there are none.
std::vector<Device> gpu_devices();
/// GPU `ordinal`. Fails with `unsupported` if the build has no GPU kernels or there is no such GPU; the message says which.
Result<Device> gpu_device(int ordinal = 0);
/// A pretended device by name: "avx512", "sm90", "gfx942", ... invalid_argument, with all names, for an unknown one.
Result<Device> find_device(std::string_view name);
std::vector<Device> known_devices();

}  // namespace quire
