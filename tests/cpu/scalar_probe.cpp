// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/simd_scalar.h"
#include "cpu/simd_probe_body.h"

namespace quire::test {
constinit const SimdProbe kScalarProbe = make_probe<cpu::ScalarSimd>("scalar", 0);
}  // namespace quire::test
