// SPDX-License-Identifier: Apache-2.0
// Stage: attend. acc += weights V for so few rows that V is the right operand where it lies: no element of V is moved.
//
// A row of V holds dims 2n and 2n + 1 side by side where TDPBF16PS wants two keys. With a key's weight in the even place of a
// pair and zero in the odd one the product yields the even dims, the other way round the odd ones: half of the multiplications
// are by zero, which this unit has time for. The three parts of a weight are rows of their own, added up at the end of a segment.
// Zero times an element that is not finite is NaN: whoever finds such an accumulator repeats the segment without those elements.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/amx/products.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kBlockKeys = 16;  ///< keys of one right operand

/// A row's weights of one tile, one word a key: part i of key k of block b at words[b * kBlockWords + i * part_stride + k], in
/// the lower half of the word; kBlockWords / 2 further on in the upper half.
struct PlacedWeights {
  static constexpr std::int64_t kBlockWords = 2 * kTileRows * kBlockKeys;
  std::uint32_t* words;
  std::int64_t part_stride;

  void store(std::int64_t chunk, __m512 p, __m512 q) const {
    store_block(2 * chunk, p);
    store_block(2 * chunk + 1, q);
  }
  void clear(std::int64_t chunk) const { store(chunk, _mm512_setzero_ps(), _mm512_setzero_ps()); }
  /// The weight of one key, put together again.
  float at(std::int64_t key) const {
    float sum = 0.0f;
    for (int part = kParts - 1; part >= 0; --part)
      sum += semantics::bits_to_float(words[key / kBlockKeys * kBlockWords + part * part_stride + key % kBlockKeys] << 16);
    return sum;
  }

 private:
  void store_block(std::int64_t block, __m512 p) const {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    std::uint32_t* to = words + block * kBlockWords;
    for (int part = 0; part < kParts; ++part, to += part_stride) {
      const __m512i high = _mm512_and_si512(_mm512_castps_si512(p), upper);
      _mm512_store_si512(to, _mm512_srli_epi32(high, 16));
      _mm512_store_si512(to + kBlockWords / 2, high);
      p = _mm512_sub_ps(p, _mm512_castsi512_ps(high));
    }
  }
};

/// Where these accumulators keep dim d: even dims of 32, then odd ones.
inline std::int64_t placed_accumulator_index(std::int64_t d) { return d / 32 * 32 + d % 2 * 16 + d % 32 / 2; }

/// Accumulators of dims [32 c, 32 c + 32) -> natural order.
inline void placed_natural_order(const float* from, float* to) {
  const __m512 even = _mm512_loadu_ps(from), odd = _mm512_loadu_ps(from + 16);
  const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i second = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(even, first, odd));
  _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(even, second, odd));
}

/// acc += weights V for the rows that T was configured for, parts included, and all dims. Calls `between` now and then, for other
/// work to be mixed in. Each row of weights is loaded for every 32 dims again, which spares registers (tiles.h).
template <class T, class F>
void accumulate_placed_rows(float* acc, std::int64_t dims, const std::uint32_t* weights, const KeyBlock* values,
                            ChunkRange chunks, F&& between) {
  for (std::int64_t d = 0; d < dims; d += 32, acc += 32) {
    T::template load<2>(acc, 4 * dims);
    T::template load<3>(acc + 16, 4 * dims);
    for (std::int64_t b = 2 * chunks.begin; b < 2 * chunks.end; ++b) {
      const std::uint32_t* even = weights + b * PlacedWeights::kBlockWords;
      T::template load<6>(values[b].from + 2 * d, values[b].stride);
      T::template load<5>(even, 64);
      T::template dot<2, 5, 6>();
      T::template load<5>(even + PlacedWeights::kBlockWords / 2, 64);
      T::template dot<3, 5, 6>();
      between();
    }
    T::template store<2>(acc, 4 * dims);
    T::template store<3>(acc + 16, 4 * dims);
  }
}

}  // namespace
}  // namespace quire::cpu
