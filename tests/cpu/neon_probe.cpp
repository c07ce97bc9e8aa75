// SPDX-License-Identifier: Apache-2.0
#if defined(__aarch64__)
#include "backend/cpu/simd_neon.h"
#endif
#include "cpu/simd_probe_body.h"

namespace quire::test {
#if defined(__aarch64__)
constinit const SimdProbe kNeonProbe = make_probe<cpu::NeonSimd>("neon", 1u << 3);
#else
const SimdProbe kNeonProbe{};
#endif
}  // namespace quire::test
