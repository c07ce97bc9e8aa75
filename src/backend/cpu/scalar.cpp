// SPDX-License-Identifier: Apache-2.0
// cpu_generic: the kernel body in portable C++.
#include "backend/cpu/attend_body.h"
#include "backend/cpu/simd_scalar.h"

namespace quire::cpu {
const KernelEntry kGenericEntry = {&plan_detail::rows::cpu_generic, attend_item<ScalarSimd>, merge_item<ScalarSimd>};
}  // namespace quire::cpu
