// SPDX-License-Identifier: Apache-2.0
// Stage: attend. fp8 codes as bf16 words, 64 at a time: the two bytes of a word are looked up by byte permutes (AVX512-VBMI).
// Every fp8 value is a bf16, NaN included: nothing is rounded.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::cpu {

/// The codes of an fp8 format as bf16, split for byte permutes: of codes [0, 64) and [64, 128), without sign.
struct Fp8Codes {
  __m512i low[2], high[2];
  bool minus_zero_is_nan;  ///< the fnuz formats

  explicit Fp8Codes(const std::uint16_t* bf16) {
    for (int half = 0; half < 2; ++half) {
      const __m512i a = _mm512_loadu_si512(bf16 + 64 * half);
      const __m512i b = _mm512_loadu_si512(bf16 + 64 * half + 32);
      low[half] = join(_mm512_cvtepi16_epi8(a), _mm512_cvtepi16_epi8(b));
      high[half] = join(_mm512_cvtepi16_epi8(_mm512_srli_epi16(a, 8)), _mm512_cvtepi16_epi8(_mm512_srli_epi16(b, 8)));
    }
    minus_zero_is_nan = (bf16[0x80] & 0x7F80u) == 0x7F80u;
  }
  static __m512i join(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
};

#ifdef __AVX512VBMI__
/// 64 codes -> 64 bf16, elements 0..31 and 32..63. kMinusZeroIsNan: the fnuz formats.
template <bool kMinusZeroIsNan>
void convert_fp8(const Fp8Codes& table, __m512i codes, __m512i& first, __m512i& second) {
  // Eight codes to the lower half of each 128-bit lane and eight to the upper: unpacking then keeps the order.
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  codes = _mm512_permutexvar_epi64(order, codes);
  __m512i low = _mm512_permutex2var_epi8(table.low[0], codes, table.low[1]);
  __m512i high = _mm512_permutex2var_epi8(table.high[0], codes, table.high[1]);
  high = _mm512_ternarylogic_epi32(sign, codes, high, 0xEA);  // (sign & codes) | high
  if constexpr (kMinusZeroIsNan) {
    const __mmask64 nan = _mm512_cmpeq_epi8_mask(codes, sign);
    high = _mm512_mask_mov_epi8(high, nan, _mm512_set1_epi8(0x7F));
    low = _mm512_mask_mov_epi8(low, nan, _mm512_set1_epi8(static_cast<char>(0xC0)));
  }
  first = _mm512_unpacklo_epi8(low, high);
  second = _mm512_unpackhi_epi8(low, high);
}

template <bool kMinusZeroIsNan>
void fp8_rows_as_bf16_of(const Fp8Codes& codes, const std::uint8_t* const* from, std::int64_t count, std::int64_t head_dim,
                         std::uint8_t* to, std::int64_t bytes, std::int64_t pitch) {
  const auto first_of = [](std::int64_t n) { return n >= 64 ? ~__mmask64{0} : (__mmask64{1} << n) - 1; };
  const Fp8Codes table = codes;  // a copy in registers: the stores below might alias `codes`
  for (std::int64_t j = 0; j < count; ++j, to += pitch) {
    std::int64_t d = 0;
    __m512i first, second;
    for (; d + 64 <= head_dim; d += 64) {
      convert_fp8<kMinusZeroIsNan>(table, _mm512_loadu_si512(from[j] + d), first, second);
      _mm512_storeu_si512(to + 2 * d, first);
      _mm512_storeu_si512(to + 2 * d + 64, second);
    }
    const std::int64_t left = bytes - 2 * d;
    if (left <= 0) continue;
    // Masked-out codes are 0, whose value is 0.
    convert_fp8<kMinusZeroIsNan>(table, _mm512_maskz_loadu_epi8(first_of(head_dim - d), from[j] + d), first, second);
    _mm512_mask_storeu_epi8(to + 2 * d, first_of(left), first);
    if (left > 64) _mm512_mask_storeu_epi8(to + 2 * d + 64, first_of(left - 64), second);
  }
}

/// Rows of head_dim codes, `count` of them at from[], as rows of bf16: `bytes` of each are written, zeros behind its dims; a row
/// begins `pitch` bytes behind the one before. 2 head_dim <= bytes < 2 head_dim + 64.
inline void fp8_rows_as_bf16(const Fp8Codes& codes, const std::uint8_t* const* from, std::int64_t count, std::int64_t head_dim,
                             std::uint8_t* to, std::int64_t bytes, std::int64_t pitch) {
  codes.minus_zero_is_nan ? fp8_rows_as_bf16_of<true>(codes, from, count, head_dim, to, bytes, pitch)
                          : fp8_rows_as_bf16_of<false>(codes, from, count, head_dim, to, bytes, pitch);
}
#endif

}  // namespace quire::cpu
