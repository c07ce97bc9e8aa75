// SPDX-License-Identifier: Apache-2.0
#include "bf16_dot/dot_probe.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace quire::test {
#if defined(__AVX512BF16__)
namespace {
void dot(const std::uint32_t* a, const std::uint32_t* b, const float* c, float* out) {
  const auto pairs = [](const std::uint32_t* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); };
  _mm512_storeu_ps(out, _mm512_dpbf16_ps(_mm512_loadu_ps(c), pairs(a), pairs(b)));
}
}  // namespace
const HardwareDot kHardwareDot = dot;
#else
const HardwareDot kHardwareDot = nullptr;
#endif
}  // namespace quire::test
