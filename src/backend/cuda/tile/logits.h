// SPDX-License-Identifier: Apache-2.0
// Conversion of dot products to logits in base 2: the factors, and a short tanh.
#pragma once

#include "backend/cuda/ptx.h"
#include "backend/cuda/tile/rows.h"
#include "semantics/score.h"

namespace quire::cuda::tile {

/// Factors of the dot products of one request and KV head.
struct Logits {
  float scale = 1.0f;  ///< softmax_scale * k_scale
  float soft_cap = 0.0f;
  float base2 = 1.0f;  ///< scale * log2(e): the whole way if there is neither cap nor slope
  bool plain = true;
};

/// x * factor, rounded by an operation of its own. Fused with the subtraction of a maximum, itself a rounded product, a huge
/// product would differ from the maximum by half a unit of it, and weights become infinite or 0.
__device__ inline float rounded_product(float x, float factor) { return __fmul_rn(x, factor); }

/// FloatOps with a short tanh, 1 - 2 / (e^2|x| + 1), and a division of 2 units in the last place: the absolute error of
/// tanh is at most 3.00 * 2^-24 on an H200, every float measured (numerics.md pays for 4).
struct ShortTanh : semantics::FloatOps {
  __device__ static float div(float a, float b) { return __fdividef(a, b); }
  __device__ static float tanh(float x) {
    const float most = fabsf(x) > 20.0f ? 20.0f : fabsf(x);  // tanh is 1 there; from 44.4 on, d would be infinite and d * r NaN
    const float d = ptx::exp2_approx(most * (2.0f * kLog2e)) + 1.0f;
    const float r = ptx::reciprocal_approx(d);
    return copysignf(1.0f - 2.0f * r * (2.0f - d * r), x);  // r * (2 - d * r) is a Newton step of the reciprocal
  }
};

}  // namespace quire::cuda::tile
