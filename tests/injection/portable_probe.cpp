// SPDX-License-Identifier: Apache-2.0
// The portable kernels with steps that can be made wrong.
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_scalar.h"
#if defined(__aarch64__)
#include "backend/cpu/simd_neon.h"
#endif
#include "injection/planted_steps.h"

namespace quire::test {
const cpu::KernelEntry kPlantedGeneric = {&plan_detail::rows::cpu_generic, cpu::attend_item<Planted<cpu::ScalarSimd>>,
                                          cpu::merge_item<Planted<cpu::ScalarSimd>>};
#if defined(__aarch64__)
const cpu::KernelEntry kPlantedNeon = {&plan_detail::rows::cpu_neon, cpu::attend_item<Planted<cpu::NeonSimd>>,
                                       cpu::merge_item<Planted<cpu::NeonSimd>>};
#endif
}  // namespace quire::test
