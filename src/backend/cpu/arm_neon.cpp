// SPDX-License-Identifier: Apache-2.0
// cpu_neon: the kernel body for AArch64 Advanced SIMD, which every AArch64 processor has.
#if defined(__aarch64__)
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_neon.h"

namespace quire::cpu {
const KernelEntry kNeonEntry = {&plan_detail::rows::cpu_neon, attend_item<NeonSimd>, merge_item<NeonSimd>};
}  // namespace quire::cpu
#endif
