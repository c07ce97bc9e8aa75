// SPDX-License-Identifier: Apache-2.0
#if defined(__AVX2__)
#include "backend/cpu/simd_avx2.h"
#endif
#include "cpu/simd_probe_body.h"

namespace quire::test {
#if defined(__AVX2__)
constinit const SimdProbe kAvx2Probe = make_probe<cpu::Avx2Simd>("avx2", 1u << 0);
#else
const SimdProbe kAvx2Probe{};
#endif
}  // namespace quire::test
