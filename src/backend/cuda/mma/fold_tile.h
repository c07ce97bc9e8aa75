// SPDX-License-Identifier: Apache-2.0
// One tile of keys folded into the rows of a warp: scores on the tensor cores, online softmax, weights times values on the
// tensor cores. (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao 2023, arXiv:2307.08691.)
//
// Exact weights enter the second product in two 16-bit parts, p = hi + lo, off by at most 2^-16 p in bf16 and 2^-22 p in f16
// (numerics.md, "left unpaid"). Where a warp has no more than 8 rows, both parts go
// through one product: rows 0-7 of the matrix unit hold hi, rows 8-15 hold lo (kHalves = 1).
#pragma once

#include <type_traits>

#include "backend/cuda/mma/score_rows.h"
#include "backend/cuda/ptx.h"
#include "backend/cuda/tile/element.h"
#include "backend/cuda/tile/logits.h"
#include "backend/cuda/tile/pitch.h"
#include "backend/cuda/tile/rows.h"
#include "semantics/softmax_state.h"

namespace quire::cuda::mma {

/// A tile in shared memory and the part of it that counts: keys [max(first, begin), min(first + kKeys, end)).
struct KeyTile {
  const std::uint16_t* k = nullptr;
  const std::uint16_t* v = nullptr;
  int first = 0;  ///< position of the tile's row 0
  int begin = 0;  ///< positions [begin, end) are keys of this segment; other rows of the tile are zeros
  int end = 0;
  bool by_dims = false;  ///< v is rows of keys, one a dim (packed_source.h), and not rows of dims
};

/// Query operand of rows in shared memory (tall tiles).
template <int kDim>
struct QueryInShared {
  const std::uint16_t* tile;  ///< the warp's first row
  __device__ void load(std::uint32_t (&a)[4], int m, int step) const {
    const int lane = threadIdx.x % 32;
    ptx::load_matrices(a, tile + in_tile<kDim>(m * 16 + lane % 16, step * 2 + lane / 16));
  }
};

/// Query operand kept in registers.
template <int kDim>
struct QueryInRegisters {
  std::uint32_t a[kDim / 16][4];
  __device__ void load(std::uint32_t (&to)[4], int, int step) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = a[step][i];
  }
};

/// kAhead: products for which operands are there ahead. ldmatrix takes some 30 cycles, and few warps are there to hide them.
template <typename T, int kM, int kDim, int kKeys, int kAhead = 1, typename Query>
__device__ inline void multiply_scores(float (&s)[kM][kKeys / 8][4], const Query& query, const std::uint16_t* k) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[m][i][j] = 0.0f;
  constexpr int kPairs = kKeys / 16, kProducts = kDim / 16 * kPairs;
  const std::uint16_t* rows = k + in_tile<kDim>(lane % 8 + (lane / 16) * 8, (lane / 8) % 2);
  std::uint32_t a[2][kM][4], b[kAhead + 1][4];
  const auto load = [&](int i) {
    ptx::load_matrices(b[i % (kAhead + 1)], rows + in_tile<kDim>(i % kPairs * 16, i / kPairs * 2));
  };
#pragma unroll
  for (int m = 0; m < kM; ++m) query.load(a[0][m], m, 0);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i);
  // Two loops, as the compiler does not unroll one of 64 products.
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = step * kPairs + pair;
      if (i + kAhead < kProducts) load(i + kAhead);
      if (pair == 0 && step + 1 < kDim / 16)
#pragma unroll
        for (int m = 0; m < kM; ++m) query.load(a[(step + 1) % 2][m], m, step + 1);
      const std::uint32_t(&at)[4] = b[i % (kAhead + 1)];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        T::multiply(s[m][2 * pair], a[step % 2][m], at[0], at[1]);
        T::multiply(s[m][2 * pair + 1], a[step % 2][m], at[2], at[3]);
      }
    }
}

/// Soft cap and ALiBi, which need more than one product a score.
template <int kHalves, int kM, int kKeys>
__device__ inline void cap_and_slope(float (&s)[kM][kKeys / 8][4], const RowContext& rows, const KeyTile& tile,
                                     const Logits& logits) {
  const gpu::AttendArgs& a = rows.a;
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const ScoreRow row = rows.row(m, h);
      const int head = rows.kv_head * a.group + row.head;
      const float slope = a.alibi_slopes.data != nullptr ? a.alibi_slopes.data[head * a.alibi_slopes.stride] : 0.0f;
      const int q_pos = rows.position(row);
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto distance = static_cast<float>(tile.first + i * 8 + column + e - q_pos);
          float& x = s[m][i][2 * h + e];
          x = rounded_product(semantics::score<ShortTanh>(x, {logits.scale, logits.soft_cap}, slope, distance), kLog2e);
        }
    }
}

/// Keys that a row does not see get -inf.
template <int kHalves, int kM, int kKeys>
__device__ inline void mask(float (&s)[kM][kKeys / 8][4], const RowContext& rows, const KeyTile& tile) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const semantics::KeyRange seen = rows.keys_of(rows.row(m, h));
      const int begin = max(static_cast<int>(seen.begin), tile.begin), end = min(static_cast<int>(seen.end), tile.end);
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = tile.first + i * 8 + column + e;
          if (key < begin || key >= end) s[m][i][2 * h + e] = -INFINITY;
        }
    }
}

template <int kHalves, int kM, int kKeys>
__device__ inline void scale(float (&s)[kM][kKeys / 8][4], float factor) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
      for (int j = 0; j < 2 * kHalves; ++j) s[m][i][j] = rounded_product(s[m][i][j], factor);
}

/// Dot products to masked base-2 logits over a factor, which is returned for fold_weights() to apply: 1, or with kFuses, for
/// scores without cap and slope, a positive one. kScored: there may be a cap or slopes.
template <int kHalves, int kM, int kKeys, bool kFuses = false, bool kScored = true>
__device__ inline float finish_scores(float (&s)[kM][kKeys / 8][4], const RowContext& rows, const KeyTile& tile,
                                      const Logits& logits) {
  float left = 1.0f;
  if (kScored && !logits.plain)
    cap_and_slope<kHalves, kM, kKeys>(s, rows, tile, logits);
  else if (kFuses && logits.base2 > 0.0f)  // 0 times the -inf of a masked key would be NaN
    left = logits.base2;
  else
    scale<kHalves, kM, kKeys>(s, logits.base2);
  const bool whole =
      tile.first >= max(rows.span.full_begin, tile.begin) && min(rows.span.full_end, tile.end) - tile.first >= kKeys;
  if (!whole) mask<kHalves, kM, kKeys>(s, rows, tile);
  return left;
}

/// Largest absolute maximum of a row whose weights are 2^(s factor - maximum) by one fused operation. The maximum is a rounded
/// product: beyond, it may be off by so much that weights overflow, or all are 0.
inline constexpr float kMostFused = 0x1p20f;

/// Weights of one row, 2^(s factor - top + kWeightShift), in the place of its logits over `factor`; returns their sum. Without
/// kFuses, `factor` is 1. kHuge: `top` may be beyond kMostFused.
template <typename T, bool kFuses, bool kHuge, int kKeys>
__device__ inline float weigh_row(float (&s)[kKeys / 8][4], int h, float factor, float top) {
  const float base = semantics::base_of(top);
  const bool fuses = kFuses && (!kHuge || fabsf(top) <= kMostFused);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& x = s[i][2 * h + e];
      const float fused = fmaf(x, factor, T::kWeightShift - base);
      const float logit = kFuses ? rounded_product(x, factor) : x;
      x = ptx::exp2_approx(fuses ? fused : semantics::shifted_exponent(logit, base, T::kWeightShift));
      sum += x;
    }
  return sum;
}

/// Logits over `factor` to weights relative to the new maximum (times 2^kWeightShift); rows.acc and rows.sum follow. A row's bits
/// depend on the row alone. kFuses: `factor` may differ from 1.
template <typename T, int kHalves, int kM, int kDim, int kKeys, bool kFuses = false>
__device__ inline void fold_weights(float (&s)[kM][kKeys / 8][4], Rows<kM, kDim>& rows, float factor) {
  float rescale[kM][2];
  bool moved = false, huge = false;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float most = -INFINITY;
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i) most = fmaxf(most, fmaxf(s[m][i][2 * h], s[m][i][2 * h + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float top = fmaxf(rows.max[m][h], most * factor);
      rescale[m][h] = semantics::weight_in<ptx::Exp2>(rows.max[m][h], top);
      moved |= rows.max[m][h] != top;
      huge |= fabsf(top) > kMostFused;
      rows.max[m][h] = top;
    }
  const auto weigh = [&](auto is_huge) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const float sum = weigh_row<T, kFuses, decltype(is_huge)::value, kKeys>(s[m], h, factor, rows.max[m][h]);
        rows.sum[m][h] = fmaf(rows.sum[m][h], rescale[m][h], sum);  // an explicit fmaf yields the same bits in every pass
      }
  };
  if (kFuses && __any_sync(~0u, huge))
    weigh(std::true_type{});
  else
    weigh(std::false_type{});
  if (!__any_sync(~0u, moved)) return;  // an unmoved maximum rescales by exactly 1
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) rows.acc[m][i][j] *= rescale[m][j / 2 % kHalves];
}

/// Operands of the second product from rows of dims.
template <int kDim>
struct RowValues {
  const std::uint16_t* v;
  __device__ explicit RowValues(const std::uint16_t* tile) : v(tile) {}
  __device__ void load(std::uint32_t (&b)[4], int step, int pair) const {
    const int lane = threadIdx.x % 32;
    ptx::load_matrices_transposed(b, v + in_tile<kDim>(lane % 16, lane / 16) + in_tile<kDim>(step * 16, pair * 2));
  }
  __device__ std::uint32_t at(int key, int dim) const { return v[in_tile<kDim>(key, dim / 8) + dim % 8]; }
};

/// kRounded: weights are rounded to T, and their low parts are left out.
template <typename T, int kHalves, int kM, int kDim, int kKeys, bool kRounded = false, int kAhead = 1, typename Values>
__device__ inline void multiply_values(const float (&p)[kM][kKeys / 8][4], Rows<kM, kDim>& rows, const Values& values) {
  constexpr int kPairs = kDim / 16, kProducts = kKeys / 16 * kPairs;
  constexpr bool kLow = kHalves == 2 && !kRounded;
  std::uint32_t b[kAhead + 1][4];
  const auto load = [&](int i) { values.load(b[i % (kAhead + 1)], i / kPairs, i % kPairs); };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i);
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    std::uint32_t hi[kM][4], lo[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; i += 3 - kHalves) {
        const float x = p[m][2 * step + i / 2][(i % 2) * 2], y = p[m][2 * step + i / 2][(i % 2) * 2 + 1];
        hi[m][i] = T::pack(x, y);
        const float2 kept = T::unpack(hi[m][i]);
        if constexpr (kLow) lo[m][i] = T::pack(x - kept.x, y - kept.y);
        if constexpr (kHalves == 1) hi[m][i + 1] = T::pack(x - kept.x, y - kept.y);
      }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = step * kPairs + pair;
      if (i + kAhead < kProducts) load(i + kAhead);
      const std::uint32_t(&at)[4] = b[i % (kAhead + 1)];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        T::multiply(rows.acc[m][2 * pair], hi[m], at[0], at[1]);
        T::multiply(rows.acc[m][2 * pair + 1], hi[m], at[2], at[3]);
        if constexpr (kLow) {
          T::multiply(rows.acc[m][2 * pair], lo[m], at[0], at[1]);
          T::multiply(rows.acc[m][2 * pair + 1], lo[m], at[2], at[3]);
        }
      }
    }
  }
}

/// Adds the infinities and NaN of the tile's values to the rows that see them, for a tile whose product will leave them out.
/// exp(s - m) is positive, so the value itself is what its product with the weight amounts to.
template <typename T, int kHalves, int kM, int kDim, int kKeys, typename Values>
__device__ inline void add_non_finite(Rows<kM, kDim>& to, const RowContext& rows, const KeyTile& tile, const Values& values) {
#pragma unroll 1
  for (int key = 0; key < kKeys; ++key) {
    const int position = tile.first + key;
    if (position < tile.begin || position >= tile.end) continue;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const semantics::KeyRange seen = rows.keys_of(rows.row(m, h));
        if (position < seen.begin || position >= seen.end) continue;
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int dim = i * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e;
            const std::uint32_t word = values.at(key, dim);
            if ((word & T::kExponentMask) == T::kExponentMask) to.acc[m][i][2 * h + e] += T::unpack(word).x;
          }
      }
  }
}

/// Zeroes the infinities and NaN among `count` 16-bit elements, threads `index`, `index + threads`, ... of a group.
template <typename T>
__device__ inline void zero_non_finite(std::uint16_t* elements, int count, int index, int threads) {
  for (int i = index; i < count; i += threads)
    if ((elements[i] & T::kExponentMask) == T::kExponentMask) elements[i] = 0;
}

template <typename T, int kHalves, int kM, int kDim, int kKeys, typename Query>
__device__ inline void fold_scores(float (&s)[kM][kKeys / 8][4], Rows<kM, kDim>& to, const RowContext& rows, const Query& query,
                                   const KeyTile& tile, const Logits& logits) {
  multiply_scores<T, kM, kDim, kKeys>(s, query, tile.k);
  const float factor = finish_scores<kHalves, kM, kKeys>(s, rows, tile, logits);
  fold_weights<T, kHalves, kM, kDim, kKeys>(s, to, factor);
}

}  // namespace quire::cuda::mma
