// SPDX-License-Identifier: Apache-2.0
// cpu_amx on a model of the tile unit, for machines without the unit. The object comes before the library's kernel.
#if defined(__x86_64__)
#include "backend/cpu/amx/attend_amx.h"
#include "emulated/emulated_tiles.h"

namespace quire::cpu {
const KernelEntry kAmxEntry = {&plan_detail::rows::cpu_amx, attend_amx_item<EmulatedTiles>, merge_item<Avx512Simd>};
}  // namespace quire::cpu
#endif
