// SPDX-License-Identifier: Apache-2.0
// One tile of keys folded into the rows of a wave. Both products are transposed, S^T = K Q^T and O^T = V^T P^T, so that a score
// row is a column: the result of the first is in place as operand of the second, and all that concerns a row stays in its lanes.
// (Online softmax: Milakov & Gimelshein 2018, arXiv:1805.02867; Dao 2023, arXiv:2307.08691.)
//
// Weights enter the second product in two 16-bit parts, p = hi + lo, off by at most 2^-16 p in bf16 and 2^-22 p in f16
// (numerics.md, "left unpaid").
#pragma once

#include "backend/hip/matrix/query.h"
#include "backend/hip/matrix/segments.h"
#include "backend/hip/matrix/value_tile.h"
#include "semantics/score.h"

namespace quire::hip::matrix {

/// Dot products with the kBlocks * 16 rows of a tile of K: s[b].x[i] is key 16 * b + sum_row(group, i) and the lane's row.
template <class Gpu, class T, int kDim, int kBlocks, class Query>
QUIRE_DEVICE void multiply_keys(typename Gpu::Sums (&s)[kBlocks], const Query& query, const std::uint16_t* keys) {
  QUIRE_UNROLL
  for (int b = 0; b < kBlocks; ++b) s[b] = {};
  const std::uint16_t* mine = keys + lane_row() * kPitch<kDim> + Gpu::run_begin(lane_group<Gpu>());
  QUIRE_UNROLL
  for (int r = 0; r < kDim / Gpu::kRunDims; ++r) {
    const typename Gpu::Run q = query.run(r);
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      const auto k = *reinterpret_cast<const typename Gpu::Run*>(mine + 16 * b * kPitch<kDim> + r * Gpu::kRunDims);
      Gpu::template multiply<T>(s[b], Gpu::template part<0>(k), Gpu::template part<0>(q));
      if constexpr (Gpu::kProducts == 2) Gpu::template multiply<T>(s[b], Gpu::template part<1>(k), Gpu::template part<1>(q));
    }
  }
  // The products would else be put off until their results are used, and all operands kept until then.
  QUIRE_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    QUIRE_UNROLL
    for (int i = 0; i < Gpu::kSums; ++i) gpu::compute_here(s[b].x[i]);
  }
}

/// Dot products to base-2 logits; keys that the row does not see, or that are not of the segment, get -inf.
template <class Gpu, int kBlocks>
QUIRE_DEVICE void finish_scores(typename Gpu::Sums (&s)[kBlocks], const gpu::AttendArgs& a, const Segment& segment,
                                const WaveRows& rows, const LaneRow& row, int first) {
  const bool plain = a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr;
  const semantics::ScoreParams params{segment.scale, a.score.soft_cap};
  const float base2 = segment.scale * kLog2e;
  const int group = lane_group<Gpu>();
  QUIRE_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    QUIRE_UNROLL
    for (int i = 0; i < Gpu::kSums; ++i) {
      const auto distance = static_cast<float>(first + 16 * b + Gpu::sum_row(group, i) - row.q_pos);
      float& x = s[b].x[i];
      x = plain ? gpu::mul(x, base2) : gpu::mul(kLog2e, semantics::score<semantics::FloatOps>(x, params, row.slope, distance));
    }
  }
  const bool seen_by_all = first >= rows.full_begin && first + 16 * kBlocks <= rows.full_end;
  if (seen_by_all && first >= segment.begin && first + 16 * kBlocks <= segment.end) return;
  const TileRange visible = visible_keys(row, segment, first, 16 * kBlocks);
  QUIRE_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    QUIRE_UNROLL
    for (int i = 0; i < Gpu::kSums; ++i) {
      const int key = 16 * b + Gpu::sum_row(group, i);
      if (key < visible.begin || key >= visible.end) s[b].x[i] = -INFINITY;
    }
  }
}

/// NaN is passed over.
QUIRE_DEVICE float larger(float a, float b) { return b > a ? b : a; }

/// Logits to weights relative to the new maximum (times 2^kWeightShift); `to` follows.
template <class Gpu, class T, int kBlocks, int kOut>
QUIRE_DEVICE void fold_weights(typename Gpu::Sums (&s)[kBlocks], RowSums<Gpu, kOut>& to) {
  float top = to.max;
  QUIRE_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    QUIRE_UNROLL
    for (int i = 0; i < Gpu::kSums; ++i) top = larger(top, s[b].x[i]);
  }
  QUIRE_UNROLL
  for (int mask = kBlockRows; mask < Gpu::kWave; mask *= 2) top = larger(top, gpu::shuffle_xor(top, mask));
  const float base = semantics::base_of(top);
  const float rescale = gpu::exp2(to.max - base);
  to.max = top;
  float sum = 0.0f;
  QUIRE_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    QUIRE_UNROLL
    for (int i = 0; i < Gpu::kSums; ++i) {
      s[b].x[i] = gpu::exp2(semantics::shifted_exponent(s[b].x[i], base, T::kWeightShift));
      sum += s[b].x[i];
    }
  }
  to.sum = gpu::fma(to.sum, rescale, sum);
  to.scale(rescale);
}

/// acc += V^T P^T. `values` is the first column that the wave sums.
template <class Gpu, class T, int kColumns, int kBlocks, int kOut>
QUIRE_DEVICE void multiply_values(const typename Gpu::Sums (&p)[kBlocks], RowSums<Gpu, kOut>& to, const Quad* values) {
  const int group = lane_group<Gpu>();
  const Quad* mine = lane_values<Gpu, kColumns>(values, group);
  QUIRE_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    Words<Gpu::kSums / 2> high, low;
    QUIRE_UNROLL
    for (int i = 0; i < Gpu::kSums / 2; ++i) {
      const float x = p[b].x[2 * i], y = p[b].x[2 * i + 1];
      high.word[i] = T::pack_weights(x, y);
      low.word[i] = T::pack_weights(x - T::decode(high.word[i] & 0xFFFFu), y - T::decode(high.word[i] >> 16));
    }
    const typename Gpu::Operand hi = Gpu::weights(high, group), lo = Gpu::weights(low, group);
    QUIRE_UNROLL
    for (int d = 0; d < kOut; ++d) {
      const typename Gpu::Operand v = load_values<Gpu, kColumns>(mine, b, d);
      Gpu::template multiply<T>(to.acc[d], v, hi);
      Gpu::template multiply<T>(to.acc[d], v, lo);
    }
  }
}

}  // namespace quire::hip::matrix
