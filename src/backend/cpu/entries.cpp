// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of this build. tests/new_kernel has one more.
#include "backend/cpu/attend_args.h"

namespace quire::cpu {

std::span<const KernelEntry* const> kernel_entries() noexcept {
  static constexpr const KernelEntry* kEntries[] = {
      &kGenericEntry,
#if defined(__aarch64__)
      &kNeonEntry,
#endif
#if defined(__x86_64__)
      &kAvx2Entry,    &kAvx512Entry, &kAvx512Bf16Entry, &kAmxEntry,
#endif
  };
  return kEntries;
}

}  // namespace quire::cpu
