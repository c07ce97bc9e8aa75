// SPDX-License-Identifier: Apache-2.0
// cpu_amx with steps that can be made wrong.
#if defined(__x86_64__)
#include "backend/cpu/amx/attend_amx.h"
#include "injection/planted_steps.h"

const quire::cpu::KernelEntry quire::test::kPlantedAmx = {
    &plan_detail::rows::cpu_amx, cpu::attend_amx_item<Planted<cpu::HardwareTiles>>, cpu::merge_item<Planted<cpu::Avx512Simd>>};
#endif
