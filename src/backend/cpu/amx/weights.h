// SPDX-License-Identifier: Apache-2.0
// Stage: attend. Scores -> softmax weights, as A operands of TDPBF16PS.
//
// A weight is an f32 p = exp(s - max). Cut after its 8th and 16th significant bit it is the sum of three bf16 numbers, exactly,
// so three products with V replace one and nothing is rounded (the idea of splitting: Dekker 1971, Numer. Math. 18, 224-242; for
// bf16 units: Henry, Tang and Heinecke 2019, arXiv:1904.06376). Parts below 2^-126 are flushed by the tile unit.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "backend/cpu/amx/tile_rows.h"
#include "backend/cpu/item_view.h"
#include "backend/cpu/simd_avx512.h"
#include "semantics/score.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kChunkKeys = 32;  ///< keys of one A tile
constexpr int kParts = 3;

/// 2^x for x <= 0: exactly 1 at 0, 0 below -126, NaN stays NaN; relative error below 2 ulp. Polynomial of degree 6 on [-1/2,
/// 1/2].
/// Lanes outside `seen` are 0.
inline __m512 exp2_nonpositive(__m512 x, __mmask16 seen = 0xFFFF) {
  const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);  // x minus the nearest integer, exactly
  const __m512 n = _mm512_sub_ps(x, r);
  __m512 p = _mm512_set1_ps(1.546144485e-04f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.340042800e-03f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.618056938e-03f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550327152e-02f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402265072e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931471825e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_mask_cmp_ps_mask(seen, x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p, n);
}

/// The parts of the weights p of keys 0..15 and q of keys 16..31 of a chunk, as words that hold p in their lower half and q in
/// their upper one: calls store(part, words).
template <class F>
inline void split_weights(__m512 p, __m512 q, F&& store) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  for (int part = 0; part < kParts; ++part) {
    const __m512i a = _mm512_castps_si512(p), b = _mm512_castps_si512(q);
    store(part, _mm512_ternarylogic_epi32(upper, b, _mm512_srli_epi32(a, 16), 0xEA));  // (upper & b) | a >> 16
    p = _mm512_sub_ps(p, _mm512_castsi512_ps(_mm512_and_si512(a, upper)));
    q = _mm512_sub_ps(q, _mm512_castsi512_ps(_mm512_and_si512(b, upper)));
  }
}

/// Key `key`'s part in the words of its chunk.
inline float part_in(const std::uint32_t* words, std::int64_t key) {
  const std::uint32_t word = words[key % 16];
  return semantics::bits_to_float(key % kChunkKeys < 16 ? word << 16 : word & 0xFFFF0000u);
}

/// A row's weights of one tile: part i of keys k and k + 16 of a chunk share a word, at words[i * part_stride + chunk * 16 + k].
struct WeightRow {
  std::uint32_t* words;
  std::int64_t part_stride;

  void store(std::int64_t chunk, __m512 p, __m512 q) const {
    split_weights(p, q, [&](int part, __m512i word) { _mm512_storeu_si512(words + part * part_stride + chunk * 16, word); });
  }
  void clear(std::int64_t chunk) const { store(chunk, _mm512_setzero_ps(), _mm512_setzero_ps()); }
  /// The weight of one key, put together again.
  float at(std::int64_t key) const {
    float sum = 0.0f;
    for (int part = kParts - 1; part >= 0; --part) sum += part_in(words + part * part_stride + key / kChunkKeys * 16, key);
    return sum;
  }
};

/// A row's weights of one tile in the place of its dot products: the first two parts of a chunk overwrite its 32 scores, so that
/// a block of rows stays in L1 from its scores to its sums. The third parts have words of their own.
struct WeightsInPlace {
  float* dots;           ///< [rows][kTileKeys]
  std::uint32_t* third;  ///< [rows][kTileKeys / 2]

  WeightsInPlace of_row(std::int64_t r) const { return {dots + r * kTileKeys, third + r * (kTileKeys / 2)}; }
  /// The first word of part `part` of a chunk.
  std::uint32_t* words(int part, std::int64_t chunk) const {
    return part == 2 ? third + chunk * 16 : reinterpret_cast<std::uint32_t*>(dots) + chunk * kChunkKeys + part * 16;
  }
  void store(std::int64_t chunk, __m512 p, __m512 q) const {
    split_weights(p, q, [&](int part, __m512i word) { _mm512_storeu_si512(words(part, chunk), word); });
  }
  void clear(std::int64_t chunk) const { store(chunk, _mm512_setzero_ps(), _mm512_setzero_ps()); }
  float at(std::int64_t key) const {
    float sum = 0.0f;
    for (int part = kParts - 1; part >= 0; --part) sum += part_in(words(part, key / kChunkKeys), key);
    return sum;
  }
};

/// Chunks [begin, end) of a tile that a block of rows multiplies.
struct ChunkRange {
  std::int64_t begin = 0, end = 0;
};
inline ChunkRange chunks_of(TileKeys keys) { return {keys.begin / kChunkKeys, (keys.end + kChunkKeys - 1) / kChunkKeys}; }

/// Factors of a key's stored values; both null if all of them are 1.
struct KeyFactors {
  const float* k = nullptr;  ///< [kTileKeys], on the score
  const float* v = nullptr;  ///< [kTileKeys], on the weight
};

/// How one row turns dot products into logits.
struct RowScore {
  semantics::ScoreParams params;
  float slope = 0.0f;
  std::int64_t tile_minus_q_pos = 0;
};

/// Whether logits are dot products times the scale, which is positive, and nothing else: then the largest dot product gives the
/// largest logit and nobody needs the logits themselves.
inline bool plain_scores(const RowScore& row, const float* k_factors) {
  return row.params.soft_cap == 0.0f && row.slope == 0.0f && k_factors == nullptr && row.params.scale > 0.0f;
}

/// The maximum of a whole tile's dot products, NaN ignored.
inline float largest_dot(const float* dots) {
  using V = Avx512Simd;
  __m512 best[2] = {V::set1(-INFINITY), V::set1(-INFINITY)};
  for (std::int64_t j = 0; j < kTileKeys; j += 32)
    for (int half = 0; half < 2; ++half) best[half] = V::max_ignoring_nan(V::load(dots + j + 16 * half), best[half]);
  return V::reduce_max(V::max_ignoring_nan(best[0], best[1]));
}

/// 16 logits of keys j, j + 1, ...; -inf for keys outside `keys`.
inline __m512 logits(const float* dots, std::int64_t j, TileKeys keys, const RowScore& row, const float* k_factors) {
  using V = Avx512Simd;
  __m512 s = V::load(dots + j);
  if (k_factors != nullptr) s = V::mul(s, V::load(k_factors + j));
  const __m512 distance = V::add(V::lanes(), V::set1(static_cast<float>(row.tile_minus_q_pos + j)));
  s = semantics::score<V>(s, row.params, row.slope, distance);
  if (j >= keys.begin && j + 16 <= keys.end) return s;
  return V::keep(s, static_cast<int>(j), static_cast<int>(keys.begin), static_cast<int>(keys.end), V::set1(-INFINITY));
}

/// Replaces a row's dot products of the chunks that hold `keys` by logits and returns their maximum, NaN ignored.
inline float logits_of_row(float* dots, TileKeys keys, const RowScore& row, const float* k_factors) {
  using V = Avx512Simd;
  const ChunkRange chunks = chunks_of(keys);
  __m512 best[2] = {V::set1(-INFINITY), V::set1(-INFINITY)};
  for (std::int64_t j = chunks.begin * kChunkKeys; j < chunks.end * kChunkKeys; j += 32)
    for (int half = 0; half < 2; ++half) {
      const __m512 s = logits(dots, j + 16 * half, keys, row, k_factors);
      best[half] = V::max_ignoring_nan(s, best[half]);
      V::store(dots + j + 16 * half, s);
    }
  return V::reduce_max(V::max_ignoring_nan(best[0], best[1]));
}

inline bool any_nan(const float* logits, ChunkRange chunks) {
  bool nan = false;
  for (std::int64_t j = chunks.begin * kChunkKeys; j < chunks.end * kChunkKeys; j += 16)
    nan |= Avx512Simd::any_nan(Avx512Simd::load(logits + j));
  return nan;
}

/// Largest absolute maximum of a row whose weights are exp2(s log2(e) - max log2(e)) with one rounded product. Beyond, that
/// product may be off by so much that all weights are 0, or infinite.
constexpr float kMostFused = 0x1p20f;

/// One row's logits of a tile, `dots` times `scale`, whose maximum is `tile_max` -> weights of the chunks `all`, of which the row
/// sees `keys` (zero elsewhere). Updates the row's state and returns the factor for what the row has accumulated so far.
/// Weights: WeightRow, WeightsInPlace or PlacedWeights.
template <class Weights>
float weigh_row(const float* dots, float scale, float tile_max, TileKeys keys, ChunkRange all, const float* v_factors,
                SoftmaxState& state, const Weights& out) {
  using V = Avx512Simd;
  const ChunkRange chunks = keys.empty() ? ChunkRange{all.begin, all.begin} : chunks_of(keys);
  for (std::int64_t chunk = all.begin; chunk < all.end; ++chunk)
    if (chunk < chunks.begin || chunk >= chunks.end) out.clear(chunk);
  if (keys.empty()) return 1.0f;

  const float max = tile_max > state.max ? tile_max : state.max;
  if (max == -INFINITY) {
    // No visible key with a finite score so far: contributes nothing. A NaN score must still poison the row.
    if (any_nan(dots, chunks)) state = {0.0f, NAN};
    for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) out.clear(chunk);
    return 1.0f;
  }
  using semantics::kLog2e;
  const bool fuses = std::fabs(max) <= kMostFused;
  const __m512 minus_max = V::set1(fuses ? -max * kLog2e : -max), log2e = V::set1(kLog2e);
  const auto weight = [&](__m512 s) {
    return exp2_nonpositive(fuses ? V::fma(s, log2e, minus_max) : V::mul(V::add(s, minus_max), log2e));
  };
  __m512 sum[2] = {V::set1(0.0f), V::set1(0.0f)};
  for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    __m512 p[2];
    for (int half = 0; half < 2; ++half) {
      const std::int64_t j = chunk * kChunkKeys + 16 * half;
      p[half] = weight(V::mul(V::load(dots + j), V::set1(scale)));
      sum[half] = V::add(sum[half], p[half]);
      if (v_factors != nullptr) p[half] = V::mul(p[half], V::load(v_factors + j));
    }
    out.store(chunk, p[0], p[1]);
  }
  const float correction = state.max == max ? 1.0f : expf(state.max - max);
  state = {max, state.sum * correction + V::reduce_add(V::add(sum[0], sum[1]))};
  return correction;
}

/// The lanes of sixteen rows combined to one number each, rows as lanes. The order is that of _mm512_reduce_add_ps: lanes 8 apart
/// first, then 4, 2 and 1.
template <class F>
inline __m512 reduced_rows(const __m512 (&rows)[16], F&& join) {
  __m512 eights[8], fours[4], twos[2];
  for (int i = 0; i < 8; ++i)
    eights[i] =
        join(_mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0x44), _mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0xEE));
  for (int i = 0; i < 4; ++i)
    fours[i] = join(_mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0x88),
                    _mm512_shuffle_f32x4(eights[2 * i], eights[2 * i + 1], 0xDD));
  for (int i = 0; i < 2; ++i)
    twos[i] =
        join(_mm512_shuffle_ps(fours[2 * i], fours[2 * i + 1], 0x44), _mm512_shuffle_ps(fours[2 * i], fours[2 * i + 1], 0xEE));
  const __m512 ones = join(_mm512_shuffle_ps(twos[0], twos[1], 0x88), _mm512_shuffle_ps(twos[0], twos[1], 0xDD));
  // Row 4 e + l is element e of 128-bit lane l.
  return _mm512_permutexvar_ps(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), ones);
}
inline __m512 row_maxima(const __m512 (&rows)[16]) {
  return reduced_rows(rows, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
}
inline __m512 row_sums(const __m512 (&rows)[16]) {
  return reduced_rows(rows, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
}

/// Needs of a row beside its dot products. Rows that need neither have a path that is compiled for them.
struct PlainKind {
  bool masked;   ///< some rows see a part of the tile
  bool factors;  ///< K or V has factors
};

/// The weights of a row whose logits are dot products times factors and the scale: as weigh_row, chunk by chunk.
template <PlainKind kKind>
struct PlainRow {
  WeightsInPlace row;
  __m512 scale, minus_max;
  const std::uint16_t* seen;  ///< a bit for each key of the tile
  KeyFactors factors;
  __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};

  inline __attribute__((always_inline)) void chunk(std::int64_t chunk) {
    using V = Avx512Simd;
    __m512 p[2];
    for (int half = 0; half < 2; ++half) {
      const std::int64_t j = chunk * kChunkKeys + 16 * half;
      __m512 s = V::load(row.dots + j);
      if constexpr (kKind.factors) s = V::mul(s, V::load(factors.k + j));
      p[half] = exp2_nonpositive(V::fma(V::mul(s, scale), V::set1(semantics::kLog2e), minus_max),
                                 kKind.masked ? seen[j / 16] : __mmask16{0xFFFF});
      sum[half] = V::add(sum[half], p[half]);
      if constexpr (kKind.factors) p[half] = V::mul(p[half], V::load(factors.v + j));
    }
    row.store(chunk, p[0], p[1]);
  }
  __m512 lanes() const { return _mm512_add_ps(sum[0], sum[1]); }
};

}  // namespace
}  // namespace quire::cpu
