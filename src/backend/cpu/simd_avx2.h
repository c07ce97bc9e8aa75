// SPDX-License-Identifier: Apache-2.0
// The vector interface of attend_body.h on AVX2 + FMA + F16C. Operation names follow the Intel Intrinsics Guide.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/faults.h"
#include "backend/cpu/simd_exp.h"
#include "quire/tensor.hpp"

namespace quire::cpu {

struct Avx2Simd {
  using Faults = NoFaults;
  static constexpr int kWidth = 8;
  static constexpr int kRows = 6;  // 6 x 2 accumulators + 3 operands fit the 16 registers
  static constexpr int kCols = 2;

  static constexpr int kDirectRows = 2;  // direct path: 2 x 4 keys + 5 operands

  static constexpr int kPairs = 1;
  static constexpr bool kTransposesWords = true;        // transpose_words()
  static constexpr std::int64_t kTransposedCodes = 32;  // dims of transpose_codes()
  static constexpr bool kWidensFp8 = false;             // Fp8Codes, fp8_rows_as_bf16()
  using Reg = __m256;

  static Reg set1(float x) { return _mm256_set1_ps(x); }
  static Reg lanes() { return _mm256_set_ps(7, 6, 5, 4, 3, 2, 1, 0); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Reg a) { _mm256_storeu_ps(p, a); }
  static Reg load_f16(const std::uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Reg load_bf16(const std::uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  /// By way of f16: e5m2 is its upper byte; e4m3 has its fields seven bits lower, with another bias. NaN codes of e4m3 excepted.
  template <DType kType>
  static Reg load_fp8(const std::uint8_t* p, const float* table) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    if constexpr (kType == DType::fp8_e5m2) return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(codes), 8));
    if constexpr (kType == DType::fp8_e5m2fnuz) return look_up(p, table);
    const __m128i half = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7), _mm_set1_epi16(-0x4001));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(kType == DType::fp8_e4m3fn ? 256.0f : 128.0f));
  }
  static Reg load_i8(const std::uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  /// 16 codes of e2m1: eight magnitudes are a register, bit 3 of a code is the sign.
  static void load_e2m1(const std::uint8_t* p, Reg (&to)[2]) {
    const Reg magnitudes = _mm256_set_ps(6.0f, 4.0f, 3.0f, 2.0f, 1.5f, 1.0f, 0.5f, 0.0f);
    for (int r = 0; r < 2; ++r) {
      std::int32_t eight;
      std::memcpy(&eight, p + 4 * r, sizeof eight);
      const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(eight), _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0));
      const Reg sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(code, 28)), _mm256_set1_ps(-0.0f));
      to[r] = _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, code), sign);  // an index is the low three bits
    }
  }
  /// `count` is a multiple of 8.
  static bool has_code(const std::uint8_t* p, std::int64_t count, std::uint8_t or_mask, std::uint8_t code) {
    const __m256i mask = _mm256_set1_epi8(static_cast<char>(or_mask)), wanted = _mm256_set1_epi8(static_cast<char>(code));
    __m256i found = _mm256_setzero_si256();
    const auto look = [&](__m256i codes) {
      found = _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_or_si256(codes, mask), wanted));
    };
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) look(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i)));
    for (; i + 8 <= count; i += 8) look(_mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i))));
    return _mm256_movemask_epi8(found) != 0;
  }
  static Reg look_up(const std::uint8_t* p, const float* table) {
    const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_i32gather_ps(table, codes, 4);
  }
  static void store_f16(std::uint16_t* p, Reg a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void store_bf16(std::uint16_t* p, Reg a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }

  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg dot(Reg a, Reg b, Reg c) { return fma(a, b, c); }
  static Reg abs(Reg a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static Reg copy_sign(Reg a, Reg sign) {
    const Reg mask = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(mask, a), _mm256_and_ps(mask, sign));
  }
  static Reg round(Reg a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// Valid where 2^n is a normal number; lanes outside are replaced by zero_below.
  static Reg times_power_of_two(Reg a, Reg n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent));
  }
  /// vmaxps returns its second operand if either is NaN.
  static Reg max_ignoring_nan(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static bool any_nan(Reg a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
  static Reg keep(Reg a, int first, int begin, int end, Reg other) {
    const __m256i index = _mm256_add_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), _mm256_set1_epi32(first));
    const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), index);
    const __m256i within = _mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), index));
    return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(within));
  }
  static Reg zero_below(Reg x, float limit, Reg value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ), value);
  }
  static float lowest(Reg a) { return _mm256_cvtss_f32(a); }
  static float reduce_max(Reg a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }
  static float reduce_add(Reg a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  /// to[i] = sum of the lanes of the i-th register.
  static void store_sums(float* to, Reg a, Reg b, Reg c, Reg d) {
    const Reg ab = add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const Reg cd = add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const Reg abcd = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
  }
  static Reg exp(Reg a) { return exp_by_polynomial<Avx2Simd>(a); }
  static Reg tanh(Reg a) { return tanh_by_exp<Avx2Simd>(a); }

  /// Sixteen elements of 8 or 16 bits, the last eight `gap` elements behind the first.
  static __m256i words_of(const std::uint16_t* p, std::int64_t gap) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + gap)), 1);
  }
  static __m128i codes_of(const std::uint8_t* p, std::int64_t gap) {
    if (gap == 8) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const auto eight = [](const std::uint8_t* at) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)); };
    return _mm_unpacklo_epi64(eight(p), eight(p + gap));
  }
  /// to[c][r] = row r's word c for 8 rows of 16 words; strides in words. Words 0-7 of a row are at `from`, words 8-15 `gap` words
  /// further on. Row i and row i + 4 are interleaved: of the six bits that number an element of a 128-bit lane, the highest
  /// becomes the lowest; three times that, rows are columns.
  static void transpose_words(const std::uint16_t* from, std::int64_t gap, std::int64_t from_stride, std::uint16_t* to,
                              std::int64_t to_stride) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = words_of(from + i * from_stride, gap);
    for (int turn = 0; turn < 3; ++turn) {
      for (int i = 0; i < 4; ++i) {
        b[2 * i] = _mm256_unpacklo_epi16(a[i], a[i + 4]);
        b[2 * i + 1] = _mm256_unpackhi_epi16(a[i], a[i + 4]);
      }
      for (int i = 0; i < 8; ++i) a[i] = b[i];
    }
    for (int c = 0; c < 8; ++c) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + c * to_stride), _mm256_castsi256_si128(a[c]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (c + 8) * to_stride), _mm256_extracti128_si256(a[c], 1));
    }
  }
  /// transpose_codes() is transpose_words() for 32 rows of 16 codes: rows i and i + 16 share a register, and four turns make
  /// columns of them.
  static void transpose_codes(const std::uint8_t* from, std::int64_t gap, std::int64_t from_stride, std::uint8_t* to,
                              std::int64_t to_stride) {
    __m256i a[16], b[16];
    for (int i = 0; i < 16; ++i) {
      const __m256i lower = _mm256_castsi128_si256(codes_of(from + i * from_stride, gap));
      a[i] = _mm256_inserti128_si256(lower, codes_of(from + (i + 16) * from_stride, gap), 1);
    }
    for (int turn = 0; turn < 4; ++turn) {
      for (int i = 0; i < 8; ++i) {
        b[2 * i] = _mm256_unpacklo_epi8(a[i], a[i + 8]);
        b[2 * i + 1] = _mm256_unpackhi_epi8(a[i], a[i + 8]);
      }
      for (int i = 0; i < 16; ++i) a[i] = b[i];
    }
    for (int c = 0; c < 16; ++c) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c * to_stride), a[c]);
  }
  /// The rows of an 8 x 8 block become its columns.
  static void transpose(__m256 (&a)[8]) {
    __m256 b[8];
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
      a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xEE);
      a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
      a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      const __m256 low = a[i];
      a[i] = _mm256_permute2f128_ps(low, a[i + 4], 0x20);
      a[i + 4] = _mm256_permute2f128_ps(low, a[i + 4], 0x31);
    }
  }
  /// The even and the odd ones of 16 bf16 values that lie side by side.
  static Reg even_bf16(Reg pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16)); }
  static Reg odd_bf16(Reg pairs) {
    return _mm256_and_ps(pairs, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
};

}  // namespace quire::cpu
