// Stage: attend. Rows of a tile as rows of bf16 codes, padded with zeros to whole vectors of 32: in place where the cache holds
// them like that, through scratch where it does not. Every bf16 and fp8 code is a bf16; nothing is rounded.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/amx/tile_rows.h"
#include "backend/cpu/attend_args.h"
#include "backend/cpu/planted.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kVectorDims = 32;  // bf16 elements of one vector

/// The 256 codes of an fp8 format as bf16, split for byte permutes: [0, 128) low bytes, [128, 256) high bytes, without sign.
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
#endif

/// Whether rows of this source can be read in place.
inline bool bf16_in_place(const RowSource& s, std::int64_t head_dim) {
  return s.dtype == DType::bf16 && s.strides.dim == 1 && s.strides.x >= head_dim && head_dim % kVectorDims == 0;
}

/// Copies rows of head_dim elements as bf16 to rows of `dims`, a multiple of 32; the rest of a row is zeroed.
class RowStager {
 public:
  RowStager(const RowSource& source, std::int64_t head_dim, std::int64_t dims)
      : codes_(source.fp8_bf16 != nullptr ? source.fp8_bf16 : kNoCodes), source_(source), head_dim_(head_dim), dims_(dims) {
    contiguous_ = source.strides.dim == 1 && source.strides.x >= head_dim;
  }
  /// One row at `from`; null: a row of zeros.
  void stage(const std::uint8_t* from, std::uint16_t* to) const {
    if (from == nullptr) return QUIRE_PLANTED(masked_keys_multiplied) ? void() : clear(to, 0);
    const bool fp8 = source_.fp8_bf16 != nullptr;
    if (contiguous_ && !fp8) return stage_words(from, to);
    for (std::int64_t chunk = 0, d = 0; d < head_dim_; ++chunk)
      for (std::int64_t i = 0; i < source_.strides.x && d < head_dim_; ++i, ++d) {
        const std::int64_t at = chunk * source_.strides.chunk + i * source_.strides.dim;
        to[d] = fp8 ? source_.fp8_bf16[from[at]] : reinterpret_cast<const std::uint16_t*>(from)[at];
      }
    clear(to, head_dim_);
  }
  /// Whether stage_fp8 takes these rows.
  bool vector_fp8() const {
#ifdef __AVX512VBMI__
    return contiguous_ && source_.fp8_bf16 != nullptr;
#else
    return false;
#endif
  }
#ifdef __AVX512VBMI__
  /// rows[0 .. count) at `from`, none of them null, to rows of `dims`.
  void stage_fp8(const std::uint8_t* const* from, std::int64_t count, std::uint8_t* to) const {
    codes_.minus_zero_is_nan ? stage_codes<true>(from, count, to) : stage_codes<false>(from, count, to);
  }
#endif

 private:
  static constexpr std::uint16_t kNoCodes[256] = {};

  void clear(std::uint16_t* to, std::int64_t d) const {
    for (; d < dims_; ++d) to[d] = 0;
  }
  void stage_words(const std::uint8_t* from, std::uint16_t* to) const {
    for (std::int64_t d = 0; d < dims_; d += 32) {
      const std::int64_t left = head_dim_ - d;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
      _mm512_storeu_si512(to + d, _mm512_maskz_loadu_epi16(mask, from + 2 * d));
    }
  }
#ifdef __AVX512VBMI__
  template <bool kMinusZeroIsNan>
  void stage_codes(const std::uint8_t* const* from, std::int64_t count, std::uint8_t* to) const {
    const Fp8Codes table = codes_;  // in registers: the stores below might change a member
    const std::int64_t head_dim = head_dim_, dims = dims_;
    for (std::int64_t j = 0; j < count; ++j, to += 2 * dims) {
      std::int64_t d = 0;
      __m512i first, second;
      for (; d + 64 <= head_dim; d += 64) {
        convert_fp8<kMinusZeroIsNan>(table, _mm512_loadu_si512(from[j] + d), first, second);
        _mm512_store_si512(to + 2 * d, first);
        _mm512_store_si512(to + 2 * d + 64, second);
      }
      if (d == dims) continue;
      // Masked-out codes are 0, whose value is 0.
      const __mmask64 mask = (__mmask64{1} << (head_dim - d)) - 1;
      convert_fp8<kMinusZeroIsNan>(table, _mm512_maskz_loadu_epi8(mask, from[j] + d), first, second);
      _mm512_store_si512(to + 2 * d, first);
      if (d + 32 < dims) _mm512_store_si512(to + 2 * d + 64, second);
    }
  }
#endif

  Fp8Codes codes_;
  const RowSource& source_;
  std::int64_t head_dim_, dims_;
  bool contiguous_ = false;
};

}  // namespace
}  // namespace quire::cpu
