// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Rows of bf16 -> B operands of TDPBF16PS: row k of such a tile holds elements 2k and 2k + 1 of each column, side
// by side. Columns are keys (panel of K), score rows (panel of Q) or dims (panel of V).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/amx/bf16_rows.h"
#include "backend/cpu/amx/tiles.h"
#include "backend/cpu/simd_avx512.h"

namespace quire::cpu {
namespace {

/// 16 rows of `dims` bf16 -> dims / 32 tiles, each [16 pairs of dims][16 rows]. A pair is one 32-bit word: a plain transposition.
inline void pack_columns(const std::uint8_t* const* rows, std::int64_t dims, std::uint8_t* tiles) {
  for (std::int64_t d = 0; d < dims; d += kVectorDims, tiles += kTileBytes) {
    __m512 words[16];
    for (int i = 0; i < 16; ++i) words[i] = _mm512_loadu_ps(rows[i] + 2 * d);
    Avx512Simd::transpose(words);
    for (int i = 0; i < 16; ++i) _mm512_store_ps(tiles + 64 * i, words[i]);
  }
}

/// Where the accumulator keeps dim d: pack_values leaves dims in the order in which unpacking 128-bit lanes yields them.
inline std::int64_t accumulator_index(std::int64_t d) {
  const std::int64_t within = d % 32;
  return d / 32 * 32 + (within / 4 % 2) * 16 + within / 8 * 4 + within % 4;
}

/// dims [32 c, 32 c + 32) of a row in accumulator order -> natural order.
inline void natural_order(const float* from, float* to) {
  const __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + 16);
  const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const __m512i second = _mm512_set_epi32(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8);
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(a, first, b));
  _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(a, second, b));
}

/// 32 rows of V -> dims / 32 pairs of tiles, each [16 pairs of keys (k, k + 16)][16 dims]. Returns whether every element is
/// finite. Calls `between` now and then, for other work to be mixed in.
template <class F>
bool pack_values(const std::uint8_t* const* rows, std::int64_t dims, std::uint8_t* tiles, F&& between) {
  __m512i largest = _mm512_setzero_si512();  // twice the code has no sign; infinity and NaN are 0xFF00 and up
  for (std::int64_t d = 0; d < dims; d += kVectorDims, tiles += 2 * kTileBytes) {
    for (int k = 0; k < 16; ++k) {
      const __m512i a = _mm512_loadu_si512(rows[k] + 2 * d), b = _mm512_loadu_si512(rows[k + 16] + 2 * d);
      largest = _mm512_max_epu16(largest, _mm512_max_epu16(_mm512_add_epi16(a, a), _mm512_add_epi16(b, b)));
      _mm512_store_si512(tiles + 64 * k, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(tiles + kTileBytes + 64 * k, _mm512_unpackhi_epi16(a, b));
      if (k % 4 == 3) between();
    }
  }
  return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(static_cast<short>(0xFF00))) == 0;
}

inline bool finite_bf16(std::uint16_t code) { return (code & 0x7F80u) != 0x7F80u; }

}  // namespace
}  // namespace quire::cpu
