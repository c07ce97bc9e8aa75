// SPDX-License-Identifier: Apache-2.0
// cpu_avx512: the kernel body for AVX-512 F/BW/VL/DQ. Compiled with those flags; called only if CPUID shows them.
#if defined(__x86_64__)
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_avx512.h"

namespace quire::cpu {
const KernelEntry kAvx512Entry = {&plan_detail::rows::cpu_avx512, attend_item<Avx512Simd>, merge_item<Avx512Simd>};
}  // namespace quire::cpu
#endif
