// SPDX-License-Identifier: Apache-2.0
// The registers of a consumer thread of prefill: scores and weights of a tile, and the running softmax of its two rows.
//
// Weights are relative to a maximum that lags behind, so that rows are seldom rescaled: in most data in their first tiles alone.
// A logit may exceed a maximum that is looked at by kSlack (base 2); a maximum that is not shows in the sums. Weights are
// 2^kShift times as large, and at most kMostSum: an f16 holds that. A row depends on no other row: some rows of a warp may not
// exist, and hold what was left in memory.
//
// A weight is 2^(s factor - max) by one fused operation, but the maximum is a rounded product. A huge one may be off by so much
// that all weights are 0. Such a maximum becomes NaN, and so do the row's sums: the row is computed again, by exact_rows.h.
#pragma once

#include <type_traits>

#include "backend/cuda/hopper/wgmma.h"
#include "backend/cuda/sm90/prefill/memory.h"
#include "backend/cuda/tile/element.h"
#include "backend/cuda/tile/finish.h"

namespace quire::cuda::sm90::prefill {

template <typename Element>
constexpr bool is_f16 = Element::kDType == DType::f16;

/// T: type of the query.
template <typename T, typename Memory>
struct Softmax {
  /// Type of weights and cached values in the second product. Codes become f16 whatever the query is, and so do their weights.
  using Weight = std::conditional_t<Memory::kCodes, tile::F16, T>;
  static constexpr int kOutDim = Memory::kOutDim, kKeys = Memory::kKeys;
  static constexpr float kShift = is_f16<Weight> ? 7.0f : 0.0f, kSlack = 8.0f, kMostSum = 32768.0f;

  /// Maximum and sum of this thread's two rows.
  struct Totals {
    float max[2] = {-INFINITY, -INFINITY};  ///< base 2
    float sum[2] = {};                      ///< sum over this thread's columns
  };
  struct State : Totals {
    float out[kOutDim / 2] = {};  ///< columns are dims: index 4 i + 2 h + e
  };
  /// Some functions take scores of the tile's first keys alone, kCount of a thread's.
  using Scores = float[kKeys / 2];           ///< index 4 i + 2 h + e
  using Weights = std::uint32_t[kKeys / 4];  ///< pairs in the order in which wgmma takes them as A

  /// The largest score of each row in this thread's columns, in several chains: a chain alone would wait for itself.
  template <int kCount>
  __device__ static void largest(float (&top)[2], const float (&s)[kCount]) {
    float of[2][4];
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float pair = fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]);
        of[h][i % 4] = i < 4 ? pair : fmaxf(of[h][i % 4], pair);
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) top[h] = fmaxf(fmaxf(of[h][0], of[h][1]), fmaxf(of[h][2], of[h][3]));
  }

  /// The largest over all four threads of a row.
  __device__ static void share_largest(float (&top)[2]) {
#pragma unroll
    for (int mask = 1; mask <= 2; mask *= 2)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], mask));
  }

  /// The largest maximum that a weight of one fused operation may be relative to: a product of this size is off by at most 2^-4.
  /// fusable() makes NaN of a larger maximum.
  static constexpr float kMostFused = 0x1p20f;
  __device__ static float fusable(float max) { return fabsf(max) <= kMostFused || max == -INFINITY ? max : NAN; }

  /// Moves the maxima of rows that have outgrown them (`first_only`: only if they had none); true if one of the warp's rows did.
  /// Accumulators of before are then to be multiplied by `rescale`.
  template <int kCount>
  __device__ static bool move_maxima(Totals& state, const float (&s)[kCount], float factor, const bool (&first_only)[2],
                                     float (&rescale)[2]) {
    float top[2], most[2];
    largest(top, s);
#pragma unroll
    for (int h = 0; h < 2; ++h) most[h] = first_only[h] && state.max[h] != -INFINITY ? INFINITY : state.max[h] + kSlack;
    if (!__any_sync(~0u, top[0] * factor > most[0] || top[1] * factor > most[1])) return false;
    share_largest(top);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] *= factor;
      top[h] = top[h] > most[h] ? fusable(top[h]) : state.max[h];
      rescale[h] = semantics::weight_in<ptx::Exp2>(state.max[h], top[h]);
      state.max[h] = top[h];
      state.sum[h] *= rescale[h];
    }
    return true;
  }

  /// True if a row of the warp has seen no key yet, or only keys with a score of -inf.
  __device__ static bool any_empty(const Totals& state) {
    return __any_sync(~0u, state.max[0] == -INFINITY || state.max[1] == -INFINITY);
  }

  /// Logits to weights.
  template <int kCount>
  __device__ static void exponentiate(float (&s)[kCount], const Totals& state, float factor) {
    float shifted[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) shifted[h] = semantics::base_of(state.max[h]) - kShift;
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = ptx::exp2_approx(fmaf(s[i], factor, -shifted[i / 2 % 2]));
    hopper::settle(s);
  }

  /// Sums of this thread's weights. `shared_zero` is 0 in shared memory: a sum that begins with a read of it cannot be moved
  /// among the exponentials.
  template <int kCount>
  __device__ static void add_up(float (&total)[2], const float (&s)[kCount], const float& shared_zero) {
    const float zero = hopper::zero_from_here(&shared_zero);
    float sum[2][2] = {{zero, zero}, {zero, zero}};
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i / 2 % 2][i % 2] += s[i];
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h] = sum[h][0] + sum[h][1];
  }

  /// Divides weights that came out too large by a power of two, and with them the sums and accumulators of their rows.
  __device__ static void lower_weights(Scores& s, float (&total)[2], State& state) {
    float top[2], largest_total[2] = {total[0], total[1]}, rescale[2];
    largest(top, s);
    share_largest(top);
    share_largest(largest_total);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int exponent = (__float_as_int(top[h]) >> 23) - 127 - static_cast<int>(kShift);
      const int above = largest_total[h] > kMostSum ? min(max(exponent, 0), 126) : 0;
      state.max[h] = fusable(state.max[h] + static_cast<float>(above));
      rescale[h] = isnan(state.max[h]) ? NAN : __int_as_float((127 - above) << 23);
      state.sum[h] *= rescale[h];
      total[h] *= rescale[h];
    }
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) s[i] *= rescale[i / 2 % 2];
    rescale_out(state, rescale);
  }

  /// Adds the weights to the sums, and packs them.
  template <typename Element>
  __device__ static void sum_and_pack(Weights& p, Scores& s, State& state, const float& shared_zero) {
    float total[2];
    add_up(total, s, shared_zero);
    pack_weights<Element>(p, s);
    if (__any_sync(~0u, total[0] > kMostSum || total[1] > kMostSum)) {
      lower_weights(s, total, state);
      pack_weights<Element>(p, s);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) state.sum[h] += total[h];
  }

  template <typename Element, int kCount>
  __device__ static void pack_weights(Weights& p, const float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
  }

  __device__ static void rescale_out(State& state, const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < kOutDim / 2; ++i) state.out[i] *= rescale[i / 2 % 2];
  }
};

}  // namespace quire::cuda::sm90::prefill
