// SPDX-License-Identifier: Apache-2.0
// cpu_avx2: the kernel body for AVX2 + FMA + F16C. Compiled with those flags; called only if CPUID shows them.
#if defined(__x86_64__)
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_avx2.h"

namespace quire::cpu {
const KernelEntry kAvx2Entry = {&plan_detail::rows::cpu_avx2, attend_item<Avx2Simd>, merge_item<Avx2Simd>};
}  // namespace quire::cpu
#endif
