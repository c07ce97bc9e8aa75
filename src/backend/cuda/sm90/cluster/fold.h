// SPDX-License-Identifier: Apache-2.0
// One unit of keys into the running softmax of a warp: scores, weights, values, by mma.sync m16n8k16.
//
//     S [8 x 16 keys] = Q [8 x d] K^T          rows 8 to 15 of the product are not used
//     O [8 x d]      += P [8 x 16 keys] V      rows 0 to 7 have the high parts of the weights, rows 8 to 15 the low parts
//
// Weights in two 16-bit parts lose nothing that counts (numerics.md), and the low parts cost no product: the rows are there.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/sm90/cluster/keys.h"
#include "backend/cuda/tile/logits.h"
#include "semantics/softmax_state.h"

namespace quire::cuda::sm90::cluster {

/// Conversion of dot products of this thread's row to base-2 logits.
struct RowLogits {
  float base2, scale, soft_cap, slope;
  bool plain;
  std::int32_t q_pos;

  /// unit: the value of 1 in the row.
  __device__ static RowLogits of(const gpu::AttendArgs& a, int kv_head, std::int32_t q_pos, float unit) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    const float scale = a.score.scale * a.k_scale.at(kv_head, 1.0f) * a.q_scale.at(kv_head, 1.0f) * unit;
    const float slope = g < a.group ? a.alibi_slopes.at(kv_head * a.group + g, 0.0f) : 0.0f;
    return {
        scale * tile::kLog2e, scale, a.score.soft_cap, slope, a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr, q_pos};
  }
  /// `positions`: of the scores.
  __device__ void finish(float (&s)[4], const std::int32_t (&positions)[4]) const {
    if (plain) [[likely]] {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] = tile::rounded_product(s[i], base2);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      s[i] = tile::rounded_product(
          semantics::score<tile::ShortTanh>(s[i], {scale, soft_cap}, slope, static_cast<float>(positions[i] - q_pos)),
          tile::kLog2e);
  }
};

/// The rows of a warp: query, accumulators and running softmax. Lane (g, c) = (lane / 4, lane % 4) has part of row g. Products:
/// PlainUnit or CodeUnit.
template <typename Products>
struct Warp {
  using Weight = typename Products::Weight;
  using Memory = typename Products::Memory;
  using Unit = typename Memory::Unit;
  static constexpr int kProducts = Products::kProducts;
  /// The most by which a logit may exceed the maximum, in base 2: f16 weights are 2^14 times as large and end at 2^16.
  static constexpr float kHeadroom = Weight::kDType == DType::f16 ? 1.0f : 8.0f;

  typename Products::Words query;
  float out[kProducts][4] = {};       ///< sums of two dims: high parts, then low parts
  float max = -INFINITY, sum = 0.0f;  ///< maximum of row g, and its sum over this thread's keys

  __device__ static int lane() { return Products::lane(); }

  /// Makes the largest of the scores the maximum of rows whose maximum it exceeds by more than kHeadroom.
  __device__ void raise_maximum(const float (&s)[4]) {
    float top = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
#pragma unroll
    for (int mask = 1; mask <= 2; mask *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
    const bool above = top > __fadd_rd(max, kHeadroom);  // A sum rounded up would let a weight of f16 end at 2^16.
    if (!__any_sync(~0u, above)) return;
    const float factor = above ? semantics::weight_in<ptx::Exp2>(max, top) : 1.0f;
    if (above) max = top;
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kProducts; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] *= factor;
  }

  /// Weights in two parts, as the second product takes them: high and low parts of the first group of keys, then of the second.
  __device__ void weigh(std::uint32_t (&weights)[4], const float (&s)[4]) {
    const auto weight = [base = semantics::base_of(max)](float logit) {
      return ptx::exp2_approx(semantics::shifted_exponent(logit, base, Weight::kWeightShift));
    };
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const float x = weight(s[2 * group]), y = weight(s[2 * group + 1]);
      sum += x + y;
      weights[2 * group] = Weight::pack(x, y);
      const float2 kept = Weight::unpack(weights[2 * group]);
      weights[2 * group + 1] = Weight::pack(x - kept.x, y - kept.y);
    }
  }

  /// Folds the unit of keys at position `first`. Element 2 group + e of scores is of key 8 group + 2 c + e.
  __device__ void fold(const Unit& unit, std::int32_t first, const Seen& seen, const RowLogits& logits) {
    float s[4];
    std::int32_t positions[4];
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      float sums[2][4] = {};
      Products::multiply_keys(sums, query, unit, group);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        s[2 * group + e] = sums[0][e] + sums[1][e];
        positions[2 * group + e] = first + group * 8 + lane() % 4 * 2 + e;
      }
    }
    logits.finish(s, positions);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!seen.has(positions[i])) s[i] = -INFINITY;
    raise_maximum(s);
    std::uint32_t weights[4];
    weigh(weights, s);
    Products::multiply_values(out, weights, unit);
  }

  /// The rows' partial results to shared memory, once all units are folded.
  __device__ void keep(float (&to)[kRows][Memory::kDim + 4], RowState (&states)[kRows]) {
#pragma unroll
    for (int mask = 1; mask <= 2; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    const int g = lane() / 4;
    if (lane() % 4 == 0) states[g] = {max, sum};
    // The low part of an infinite value means nothing and is left out.
    Products::keep(to[g], [&](int i, int e) { return isfinite(out[i][e]) ? out[i][e] + out[i][e + 2] : out[i][e]; });
  }
};

}  // namespace quire::cuda::sm90::cluster
