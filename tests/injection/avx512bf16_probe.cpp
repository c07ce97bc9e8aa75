// SPDX-License-Identifier: Apache-2.0
// cpu_avx512bf16 with steps that can be made wrong.
#if defined(__x86_64__)
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_avx512bf16.h"
#include "injection/planted_steps.h"

const quire::cpu::KernelEntry quire::test::kPlantedAvx512Bf16 = {&plan_detail::rows::cpu_avx512bf16,
                                                                 cpu::attend_item<Planted<cpu::Avx512Bf16Simd>>,
                                                                 cpu::merge_item<Planted<cpu::Avx512Bf16Simd>>};
#endif
