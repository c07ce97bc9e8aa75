// SPDX-License-Identifier: Apache-2.0
// The vector interface of attend_body.h on AVX-512 with AVX512-BF16: scores are dot products of bf16 pairs, all else is f32.
//
// VDPBF16PS (Intel SDM vol. 2C): the product of the odd elements, then that of the even ones, is added with one rounding to
// nearest even each; denormal inputs count as zero and denormal results become zero; MXCSR is neither read nor written. Products
// of bf16 values are exact in f32. tests/bf16_dot puts a model in the place of the instruction, for processors without it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/elements.h"
#include "backend/cpu/fp8_words.h"
#include "backend/cpu/simd_avx512.h"

namespace quire::cpu {

struct Avx512Bf16Simd : Avx512Simd {
  static constexpr int kPairs = 2;  ///< an element of a query or key row is a pair of bf16 values, the even one in the lower half

  static Reg dot(Reg a, Reg b, Reg c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
#if defined(__AVX512VBMI__)
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
