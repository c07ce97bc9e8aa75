// SPDX-License-Identifier: Apache-2.0
#if defined(__AVX512F__)
#include "backend/cpu/simd_avx512.h"
#endif
#include "cpu/simd_probe_body.h"

namespace quire::test {
#if defined(__AVX512F__)
constinit const SimdProbe kAvx512Probe = make_probe<cpu::Avx512Simd>("avx512", 1u << 1);
#else
const SimdProbe kAvx512Probe{};
#endif
}  // namespace quire::test
