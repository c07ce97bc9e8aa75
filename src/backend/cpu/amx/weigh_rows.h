// SPDX-License-Identifier: Apache-2.0
// Stage: attend. The softmax of several score rows of one tile: maxima of all rows first, then their weights, then the factors of
// what they have accumulated so far. What one row waits for hides behind the others.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "backend/cpu/amx/amx_item.h"
#include "backend/cpu/amx/weights.h"
#include "backend/cpu/simd_avx512.h"

namespace quire::cpu {
namespace {

inline void scale_row(float* acc, std::int64_t dims, float factor) {
  for (std::int64_t d = 0; d < dims; d += 16)
    Avx512Simd::store(acc + d, Avx512Simd::mul(Avx512Simd::load(acc + d), Avx512Simd::set1(factor)));
}

/// One tile of keys as the rows of an item see it.
struct SeenTile {
  std::int64_t tile_begin;  ///< position of its first key
  TileKeys keys;            ///< keys that exist, counted from tile_begin
  KeyFactors factors;

  TileKeys of_row(const AmxItem& v, std::int64_t m) const {
    return v.view.keys(m, tile_begin, tile_begin + keys.begin, tile_begin + keys.end);
  }
};

/// Weights of rows [m, m + count) of the tile, out_of(r) for row m + r; rescales their accumulators. dots: [count][kTileKeys].
/// Calls `between` twice for each row, for other work to be mixed in.
template <class T, class Out, class F>
void weigh_rows(AmxItem& v, std::int64_t m, std::int64_t count, const SeenTile& tile, ChunkRange chunks, float* dots,
                Out&& out_of, F&& between) {
  TileKeys keys[kTileRows];
  float maxima[kTileRows], scales[kTileRows];
  for (std::int64_t r = 0; r < count; ++r) {
    const RowScore row{v.args.score, v.view.slope(m + r), tile.tile_begin - T::Faults::alibi_origin(v.view, m + r)};
    keys[r] = tile.of_row(v, m + r);
    const bool whole = keys[r].begin == 0 && keys[r].end == kTileKeys && plain_scores(row, tile.factors.k);
    scales[r] = whole ? v.args.score.scale : 1.0f;
    float* of_row = dots + r * kTileKeys;
    maxima[r] = whole             ? largest_dot(of_row) * scales[r]
                : keys[r].empty() ? -INFINITY
                                  : logits_of_row(of_row, keys[r], row, tile.factors.k);
    between();
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const float correction = T::Faults::correction(
        weigh_row(dots + r * kTileKeys, scales[r], maxima[r], keys[r], chunks, tile.factors.v, v.states[m + r], out_of(r)));
    between();
    if (correction == 1.0f) continue;
    for (std::int64_t at = m + r; at < v.acc_rows; at += v.num_rows) scale_row(v.acc + at * v.dims, v.dims, correction);
  }
}

/// The states of 16 rows, rows as lanes.
struct StateLanes {
  __m512 max, sum;

  static StateLanes load(const SoftmaxState* states) {
    const auto* from = reinterpret_cast<const float*>(states);
    const __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + 16);
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return {_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)};
  }
  void store(SoftmaxState* states) const {
    auto* to = reinterpret_cast<float*>(states);
    const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(max, first, sum));
    _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(max, second, sum));
  }
};

/// Sixteen rows whose logits are dot products times factors and the scale, which is positive: their weights are weigh_rows's, to
/// the bit, and logits are not stored. In three steps, because other work is mixed into the second one.
template <class T>
class PlainBlock {
 public:
  PlainBlock(AmxItem& item, const SeenTile& tile, std::int64_t m, std::int64_t count, const WeightsInPlace& weights)
      : v_(item), tile_(tile), m_(m), count_(count), weights_(weights) {}

  static bool takes(const AmxItem& v) { return v.args.alibi_slopes == nullptr && plain_scores({v.args.score, 0.0f, 0}, nullptr); }
  /// The maxima. False if a row has no finite score so far, or one beyond kMostFused: that is left to weigh_rows.
  template <PlainKind kKind>
  bool find_maxima(ChunkRange chunks) {
    using V = Avx512Simd;
    if constexpr (kKind.masked) find_seen();
    __m512 best[kTileRows];
    for (__m512& row : best) row = V::set1(-INFINITY);
    // Bounds that are known keep the maxima in registers.
    const std::int64_t begin = kKind.masked ? chunks.begin : 0, end = kKind.masked ? chunks.end : kTileKeys / kChunkKeys;
    for (std::int64_t j = begin * kChunkKeys; j < end * kChunkKeys; j += 16)
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        __m512 s = V::load(weights_.dots + r * kTileKeys + j);
        if constexpr (kKind.factors) s = V::mul(s, V::load(tile_.factors.k + j));
        best[r] = _mm512_mask_max_ps(best[r], kKind.masked ? seen_[r][j / 16] : __mmask16{0xFFFF}, s, best[r]);
      }
    state_ = StateLanes::load(v_.states + m_);
    max_ = _mm512_max_ps(V::mul(row_maxima(best), V::set1(v_.args.score.scale)), state_.max);
    V::store(minus_max_, V::mul(V::sub(V::set1(-0.0f), max_), V::set1(semantics::kLog2e)));
    return _mm512_cmp_ps_mask(_mm512_abs_ps(max_), V::set1(kMostFused), _CMP_NLE_UQ) == 0;
  }
  template <PlainKind kKind>
  inline __attribute__((always_inline)) PlainRow<kKind> row(std::int64_t r) const {
    return {weights_.of_row(r), _mm512_set1_ps(v_.args.score.scale), _mm512_set1_ps(minus_max_[r]), seen_[r], tile_.factors};
  }
  void set_sum(std::int64_t r, __m512 lanes) { sums_[r] = lanes; }
  /// Brings what the rows have so far to the new maxima.
  void rescale() {
    using V = Avx512Simd;
    alignas(64) float before[kTileRows], after[kTileRows];
    V::store(before, state_.max), V::store(after, max_);
    __m512 corrections = V::set1(1.0f);
    for (std::uint32_t left = _mm512_cmp_ps_mask(state_.max, max_, _CMP_NEQ_UQ); left != 0; left &= left - 1) {
      const int r = __builtin_ctz(left);
      const float correction = expf(before[r] - after[r]);
      corrections = _mm512_mask_mov_ps(corrections, static_cast<__mmask16>(1 << r), V::set1(correction));
      const float factor = T::Faults::correction(correction);
      if (factor != 1.0f) scale_row(v_.acc + (m_ + r) * v_.dims, v_.dims, factor);
    }
    state_.sum = V::add(V::mul(state_.sum, corrections), row_sums(sums_));
    state_.max = max_;
    state_.store(v_.states + m_);
  }

 private:
  void find_seen() {
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      const TileKeys keys = tile_.of_row(v_, m_ + (r < count_ ? r : count_ - 1));
      for (std::int64_t i = 0; i < kTileKeys / 16; ++i)
        seen_[r][i] = first_lanes(keys.end - 16 * i) & ~first_lanes(keys.begin - 16 * i);
    }
  }
  static std::uint16_t first_lanes(std::int64_t count) {
    return static_cast<std::uint16_t>(count <= 0 ? 0 : count >= 16 ? 0xFFFF : (1 << count) - 1);
  }

  AmxItem& v_;
  const SeenTile& tile_;
  std::int64_t m_, count_;
  WeightsInPlace weights_;
  StateLanes state_;
  __m512 max_, sums_[kTileRows];
  alignas(64) float minus_max_[kTileRows];
  std::uint16_t seen_[kTileRows][kTileKeys / 16];  ///< a bit for each key of the tile
};

}  // namespace
}  // namespace quire::cpu
