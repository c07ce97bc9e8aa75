// SPDX-License-Identifier: Apache-2.0
// cpu_avx512 with steps that can be made wrong.
#if defined(__x86_64__)
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_avx512.h"
#include "injection/planted_steps.h"

const quire::cpu::KernelEntry quire::test::kPlantedAvx512 = {
    &plan_detail::rows::cpu_avx512, cpu::attend_item<Planted<cpu::Avx512Simd>>, cpu::merge_item<Planted<cpu::Avx512Simd>>};
#endif
