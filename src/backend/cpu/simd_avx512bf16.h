// SPDX-License-Identifier: Apache-2.0
// The vector interface of attend_body.h on AVX-512 with AVX512-BF16: scores are dot products of bf16 pairs, all else is f32.
//
// VDPBF16PS (Intel SDM vol. 2C): the product of the odd elements, then that of the even ones, is added with one rounding to
// nearest even each; denormal inputs count as zero and denormal results become zero; MXCSR is neither read nor written. Products
// of bf16 values are exact in f32. With QUIRE_EMULATE_BF16_DOT the instruction is replaced by a model of it, for tests on
// processors without it (tests/bf16_dot).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/elements.h"
#include "backend/cpu/fp8_words.h"
#include "backend/cpu/simd_avx512.h"
#ifdef QUIRE_EMULATE_BF16_DOT
#include "backend/cpu/bf16_dot_model.h"
#endif

namespace quire::cpu {

struct Avx512Bf16Simd : Avx512Simd {
  static constexpr int kPairs = 2;  ///< an element of a query or key row is a pair of bf16 values, the even one in the lower half

#ifdef QUIRE_EMULATE_BF16_DOT
  static Reg dot(Reg a, Reg b, Reg c) {
    alignas(64) float x[kWidth], y[kWidth], z[kWidth];
    _mm512_store_ps(x, a);
    _mm512_store_ps(y, b);
    _mm512_store_ps(z, c);
    for (int i = 0; i < kWidth; ++i) z[i] = bf16_dot_model(x[i], y[i], z[i]);
    return _mm512_load_ps(z);
  }
#else
  static Reg dot(Reg a, Reg b, Reg c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
#endif
#if defined(__AVX512VBMI__) && !defined(QUIRE_EMULATE_BF16_DOT)
  static constexpr bool kWidensFp8 = true;
#endif
  /// The upper halves, which are all there is of a bf16 or fp8 value.
  static void store_exact_bf16(std::uint16_t* p, Reg a) {
    const __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(upper));
  }
};

#ifdef __AVX512VBMI__
namespace {

/// See elements.h.
template <class V>
class Fp8Widener<V, true> {
 public:
  explicit Fp8Widener(const RowSource& source)
      : codes_(source.fp8_bf16 != nullptr ? source.fp8_bf16 : kNoCodes), source_(source), head_dim_(source.dims) {}
  static constexpr std::int64_t kMostRows = 64;
  bool takes() const { return source_.fp8_bf16 != nullptr && source_.strides.dim == 1 && source_.strides.x >= head_dim_; }

  /// Up to kMostRows rows at offsets[0 .. count), see fp8_rows_as_bf16().
  void operator()(const std::int64_t* offsets, std::int64_t count, void* to, std::int64_t bytes, std::int64_t pitch) const {
    const std::uint8_t* rows[kMostRows];
    for (std::int64_t r = 0; r < count; ++r) rows[r] = static_cast<const std::uint8_t*>(source_.data) + offsets[r];
    fp8_rows_as_bf16(codes_, rows, count, head_dim_, static_cast<std::uint8_t*>(to), bytes, pitch);
  }

 private:
  static constexpr std::uint16_t kNoCodes[256] = {};
  Fp8Codes codes_;
  const RowSource& source_;
  std::int64_t head_dim_;
};

}  // namespace
#endif

}  // namespace quire::cpu
