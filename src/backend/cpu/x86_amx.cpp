// SPDX-License-Identifier: Apache-2.0
// cpu_amx: bf16 products on the AMX tile unit. Compiled for AVX-512 with VBMI; called only if CPUID shows them and the system
// granted the tile registers.
#if defined(__x86_64__)
#include "backend/cpu/amx/attend_amx.h"

namespace quire::cpu {
const KernelEntry kAmxEntry = {&plan_detail::rows::cpu_amx, attend_amx_item<HardwareTiles>, merge_item<Avx512Simd>};
}  // namespace quire::cpu
#endif
