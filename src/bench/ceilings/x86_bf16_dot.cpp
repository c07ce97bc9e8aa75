// SPDX-License-Identifier: Apache-2.0
// Peak rate of VDPBF16PS: independent accumulators, operands in registers (Intel SDM vol. 2C, VDPBF16PS).
#if defined(__x86_64__)

#include <immintrin.h>

#include "bench/ceilings/loops.h"

namespace quire::bench_detail {
namespace {

constexpr int kAccumulators = 16;  // latency 6 cycles x up to 2 per cycle
constexpr int kLanes = 16, kPair = 2;

float multiply_add_pairs(std::int64_t count) {
  volatile int opaque_a = 0x3F803F7F, opaque_b = 0x3C003C01;  // pairs of bf16 near 1 and near 0.008
  const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(opaque_a));
  const __m512bh b = reinterpret_cast<__m512bh>(_mm512_set1_epi32(opaque_b));
  __m512 sum[kAccumulators];
  for (int j = 0; j < kAccumulators; ++j) sum[j] = _mm512_set1_ps(static_cast<float>(j));
  for (std::int64_t i = 0; i < count; ++i)
    for (int j = 0; j < kAccumulators; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], a, b);
  for (int j = 1; j < kAccumulators; ++j) sum[0] = _mm512_add_ps(sum[0], sum[j]);
  return _mm512_cvtss_f32(sum[0]);
}

}  // namespace

const Bf16Dot& avx512_bf16_dot() {
  static constexpr Bf16Dot kDot{multiply_add_pairs, 2.0 * kPair * kLanes * kAccumulators};
  return kDot;
}

}  // namespace quire::bench_detail

#endif
