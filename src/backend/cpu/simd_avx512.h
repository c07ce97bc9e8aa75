// SPDX-License-Identifier: Apache-2.0
// The vector interface of attend_body.h on AVX-512 F/BW/VL/DQ. Operation names follow the Intel Intrinsics Guide.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/faults.h"
#include "backend/cpu/simd_exp.h"
#include "quire/tensor.hpp"

namespace quire::cpu {

struct Avx512Simd {
  using Faults = NoFaults;
  static constexpr int kWidth = 16;
  static constexpr int kRows = 6;  // 6 x 4 accumulators + 5 operands fit the 32 registers; 6 loads feed 24 multiply-adds
  static constexpr int kCols = 4;

  static constexpr int kDirectRows = 4;  // direct path: 4 x 4 keys + 5 operands

  static constexpr int kPairs = 1;
  static constexpr bool kTransposesWords = true;        // transpose_words()
  static constexpr std::int64_t kTransposedCodes = 64;  // dims of transpose_codes()
  static constexpr bool kWidensFp8 = false;             // Fp8Codes, fp8_rows_as_bf16()
  using Reg = __m512;

  static Reg set1(float x) { return _mm512_set1_ps(x); }
  static Reg lanes() { return _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg a) { _mm512_storeu_ps(p, a); }
  static Reg load_f16(const std::uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Reg load_bf16(const std::uint16_t* p) { return widened_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  /// Loads of a row in pieces of 16 bytes, `step` bytes apart.
  static Reg load_f16_pieces(const std::uint8_t* p, std::int64_t step) { return _mm512_cvtph_ps(two_pieces(p, step)); }
  static Reg load_bf16_pieces(const std::uint8_t* p, std::int64_t step) { return widened_bf16(two_pieces(p, step)); }
  static Reg load_pieces(const std::uint8_t* p, std::int64_t step) {
    const __m512i lower = _mm512_castsi256_si512(two_pieces(p, step));
    return _mm512_castsi512_ps(_mm512_inserti64x4(lower, two_pieces(p + 2 * step, step), 1));
  }
  static __m256i two_pieces(const std::uint8_t* p, std::int64_t step) {
    const __m256i lower = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_inserti128_si256(lower, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + step)), 1);
  }
  static Reg widened_bf16(__m256i bits) {
    // Word i becomes the upper half of lane i, the lower halves zero: one permutation.
    const __m512i upper = _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16, 8 << 16, 7 << 16,
                                           6 << 16, 5 << 16, 4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
    const __m512i words = _mm512_castsi256_si512(bits);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, upper, words));
  }
  /// By way of f16: e5m2 is its upper byte; e4m3 has its fields seven bits lower, with another bias. NaN codes of e4m3 excepted.
  template <DType kType>
  static Reg load_fp8(const std::uint8_t* p, const float* table) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (kType == DType::fp8_e5m2) return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
    if constexpr (kType == DType::fp8_e5m2fnuz) return look_up(p, table);
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16(-0x4001));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(kType == DType::fp8_e4m3fn ? 256.0f : 128.0f));
  }
  static Reg load_i8(const std::uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  /// 16 codes of e2m1: an index of the permutation is the low four bits of a lane.
  static void load_e2m1(const std::uint8_t* p, Reg (&to)[1]) {
    const Reg values =
        _mm512_set_ps(-6.0f, -4.0f, -3.0f, -2.0f, -1.5f, -1.0f, -0.5f, -0.0f, 6.0f, 4.0f, 3.0f, 2.0f, 1.5f, 1.0f, 0.5f, 0.0f);
    const __m512i shifts = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    std::int32_t lower, upper;
    std::memcpy(&lower, p, sizeof lower);
    std::memcpy(&upper, p + 4, sizeof upper);
    const __m512i eights = _mm512_mask_set1_epi32(_mm512_set1_epi32(lower), 0xFF00, upper);
    to[0] = _mm512_permutexvar_ps(_mm512_srlv_epi32(eights, shifts), values);
  }
  static bool has_code(const std::uint8_t* p, std::int64_t count, std::uint8_t or_mask, std::uint8_t code) {
    const __m512i mask = _mm512_set1_epi8(static_cast<char>(or_mask)), wanted = _mm512_set1_epi8(static_cast<char>(code));
    __mmask64 found = 0;
    for (std::int64_t i = 0; i < count; i += 64) {
      const __mmask64 valid = count - i >= 64 ? ~__mmask64{0} : (__mmask64{1} << (count - i)) - 1;
      const __m512i codes = _mm512_maskz_loadu_epi8(valid, p + i);
      found |= _mm512_mask_cmpeq_epi8_mask(valid, _mm512_or_si512(codes, mask), wanted);
    }
    return found != 0;
  }
  static Reg look_up(const std::uint8_t* p, const float* table) {
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_i32gather_ps(codes, table, 4);
  }
  static void store_f16(std::uint16_t* p, Reg a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void store_bf16(std::uint16_t* p, Reg a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __m512i result = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(result));
  }

  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg dot(Reg a, Reg b, Reg c) { return fma(a, b, c); }
  static Reg abs(Reg a) { return _mm512_abs_ps(a); }
  static Reg copy_sign(Reg a, Reg sign) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(mask, _mm512_castps_si512(sign), _mm512_castps_si512(a), 0xCA));
  }
  static Reg round(Reg a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Reg times_power_of_two(Reg a, Reg n) { return _mm512_scalef_ps(a, n); }
  /// vmaxps returns its second operand if either is NaN.
  static Reg max_ignoring_nan(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static bool any_nan(Reg a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
  static Reg keep(Reg a, int first, int begin, int end, Reg other) {
    const __m512i index =
        _mm512_add_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(first));
    const __mmask16 mask =
        _mm512_cmpge_epi32_mask(index, _mm512_set1_epi32(begin)) & _mm512_cmplt_epi32_mask(index, _mm512_set1_epi32(end));
    return _mm512_mask_mov_ps(other, mask, a);
  }
  static Reg zero_below(Reg x, float limit, Reg value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), value);
  }
  static float lowest(Reg a) { return _mm512_cvtss_f32(a); }
  static float reduce_max(Reg a) { return _mm512_reduce_max_ps(a); }
  static float reduce_add(Reg a) { return _mm512_reduce_add_ps(a); }
  /// to[i] = sum of the lanes of the i-th register.
  static void store_sums(float* to, Reg a, Reg b, Reg c, Reg d) {
    const Reg ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const Reg cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const Reg abcd = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
  }
  static Reg exp(Reg a) { return exp_by_polynomial<Avx512Simd>(a); }
  static Reg tanh(Reg a) { return tanh_by_exp<Avx512Simd>(a); }

  /// to[c][r] = row r's word c for 16 x 16 words of 16 bits; strides in words. Words 0-7 of a row are at `from`, words 8-15 `gap`
  /// words further on.
  static void transpose_words(const std::uint16_t* from, std::int64_t gap, std::int64_t from_stride, std::uint16_t* to,
                              std::int64_t to_stride) {
    const auto row = [&](int r) {
      const std::uint16_t* p = from + r * from_stride;
      if (gap == 8) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      return two_pieces(reinterpret_cast<const std::uint8_t*>(p), 2 * gap);
    };
    __m512i a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = _mm512_inserti64x4(_mm512_castsi256_si512(row(i)), row(i + 8), 1);
    for (int i = 0; i < 8; i += 2) b[i] = _mm512_unpacklo_epi16(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_epi16(a[i], a[i + 1]);
    for (int i = 0; i < 8; i += 4)
      for (int half = 0; half < 2; ++half) {
        a[i + 2 * half] = _mm512_unpacklo_epi32(b[i + half], b[i + 2 + half]);
        a[i + 2 * half + 1] = _mm512_unpackhi_epi32(b[i + half], b[i + 2 + half]);
      }
    // Lane 0 of column c: rows 0-7 of column c; lane 1: of column c + 8; lanes 2 and 3: rows 8-15 of the same.
    for (int c = 0; c < 8; ++c) {
      const __m512i column =
          c % 2 == 0 ? _mm512_unpacklo_epi64(a[c / 2], a[4 + c / 2]) : _mm512_unpackhi_epi64(a[c / 2], a[4 + c / 2]);
      const __m512i pair = _mm512_shuffle_i64x2(column, column, _MM_SHUFFLE(3, 1, 2, 0));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c * to_stride), _mm512_castsi512_si256(pair));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (c + 8) * to_stride), _mm512_extracti64x4_epi64(pair, 1));
    }
  }
  /// to[c][r] = row r's code c for 64 rows of 16 codes; strides in codes. Codes 0-7 of a row are at `from`, codes 8-15 `gap`
  /// further on. Rows i, i + 16, i + 32 and i + 48 share a register. Of the eight bits that number an element of a 128-bit lane,
  /// interleaving rows i and i + 8 makes the highest the lowest: four times that, rows are columns.
  static void transpose_codes(const std::uint8_t* from, std::int64_t gap, std::int64_t from_stride, std::uint8_t* to,
                              std::int64_t to_stride) {
    const auto row = [&](int r) {
      const std::uint8_t* p = from + r * from_stride;
      if (gap == 8) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      const auto eight = [](const std::uint8_t* at) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)); };
      return _mm_unpacklo_epi64(eight(p), eight(p + gap));
    };
    __m512i a[16], b[16];
    for (int i = 0; i < 16; ++i) {
      a[i] = _mm512_inserti32x4(_mm512_castsi128_si512(row(i)), row(i + 16), 1);
      a[i] = _mm512_inserti32x4(a[i], row(i + 32), 2);
      a[i] = _mm512_inserti32x4(a[i], row(i + 48), 3);
    }
    for (int turn = 0; turn < 4; ++turn) {
      for (int i = 0; i < 8; ++i) {
        b[2 * i] = _mm512_unpacklo_epi8(a[i], a[i + 8]);
        b[2 * i + 1] = _mm512_unpackhi_epi8(a[i], a[i + 8]);
      }
      for (int i = 0; i < 16; ++i) a[i] = b[i];
    }
    for (int c = 0; c < 16; ++c) _mm512_storeu_si512(to + c * to_stride, a[c]);
  }
  /// The rows of a 16 x 16 block become its columns: pairs, quads, then 128-bit lanes.
  static void transpose(__m512 (&a)[16]) {
    __m512 b[16];
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
      a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xEE);
      a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
      a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
      b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xDD);
      b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
      b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xDD);
    }
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88);
      a[i + 8] = _mm512_shuffle_f32x4(b[i], b[i + 8], 0xDD);
      a[i + 4] = _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88);
      a[i + 12] = _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xDD);
    }
  }
  /// The even and the odd ones of 32 bf16 values that lie side by side.
  static Reg even_bf16(Reg pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16)); }
  static Reg odd_bf16(Reg pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
};

}  // namespace quire::cpu
