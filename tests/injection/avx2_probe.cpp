// SPDX-License-Identifier: Apache-2.0
// cpu_avx2 with steps that can be made wrong.
#if defined(__x86_64__)
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_avx2.h"
#include "injection/planted_steps.h"

const quire::cpu::KernelEntry quire::test::kPlantedAvx2 = {&plan_detail::rows::cpu_avx2, cpu::attend_item<Planted<cpu::Avx2Simd>>,
                                                           cpu::merge_item<Planted<cpu::Avx2Simd>>};
#endif
