// SPDX-License-Identifier: Apache-2.0
// From a raw dot product to a logit: scale, soft cap, ALiBi, in this order. Masks are elsewhere (visible_range.h).
#pragma once

#include <cmath>

#include "semantics/qualifiers.h"

namespace quire::semantics {

struct ScoreParams {
  float scale = 1.0f;     ///< softmax_scale
  float soft_cap = 0.0f;  ///< 0 = none
};

/// The arithmetic of one float, for code that is not vectorised by hand.
struct FloatOps {
  using Reg = float;
  QUIRE_HD static float set1(float x) { return x; }
  QUIRE_HD static float mul(float a, float b) { return a * b; }
  QUIRE_HD static float div(float a, float b) { return a / b; }
  QUIRE_HD static float fma(float a, float b, float c) { return a * b + c; }
  QUIRE_HD static float tanh(float a) { return tanhf(a); }
};

/// s = scale * dot; s = cap * tanh(s / cap); s += slope * (k - q_pos).  (ALiBi: Press et al. 2021, arXiv:2108.12409.)
/// `Ops` is FloatOps or a vector type with the same operations; `distance` is k - q_pos of each lane.
template <class Ops>
QUIRE_HD typename Ops::Reg score(typename Ops::Reg dot, const ScoreParams& params, float slope, typename Ops::Reg distance) {
  typename Ops::Reg s = Ops::mul(dot, Ops::set1(params.scale));
  if (params.soft_cap > 0.0f) {
    const typename Ops::Reg cap = Ops::set1(params.soft_cap);
    s = Ops::mul(cap, Ops::tanh(Ops::div(s, cap)));
  }
  return slope != 0.0f ? Ops::fma(Ops::set1(slope), distance, s) : s;
}

}  // namespace quire::semantics
