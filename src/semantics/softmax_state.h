// SPDX-License-Identifier: Apache-2.0
// The running softmax: a maximum and a sum, and how two of them combine. Kernels that merge states call them.
//
// A state stands for a set of keys: max = max s(k), sum = sum exp(s(k) - max). The empty set is (-inf, 0).
// Combining is commutative and associative up to rounding, exact when one side is empty, and never produces NaN from
// empty sets. A set whose scores are all -inf counts as empty. (Milakov & Gimelshein 2018, arXiv:1805.02867.)
#pragma once

#include <cmath>

#include "semantics/qualifiers.h"

namespace quire::semantics {

inline constexpr float kLog2e = 1.4426950408889634f;  ///< log2(e)
inline constexpr float kLn2 = 0.6931471805599453f;

/// Powers of e. A kernel may bring those of another base: Exp::exp(0) is 1, and Exp::exp(-inf) is 0.
struct NaturalExp {
  QUIRE_HD static float exp(float x) { return expf(x); }
};

/// Score to which weights of a set with this maximum are relative. The empty set weighs 0 by it: -inf - -inf would be NaN.
QUIRE_HD float base_of(float max) { return max == -INFINITY ? 0.0f : max; }

/// The factor that brings sums of a set with this maximum to that of a union; also the weight of a score. An empty set has 0.
template <class Exp = NaturalExp>
QUIRE_HD float weight_in(float max, float max_of_union) {
  return Exp::exp(max - base_of(max_of_union));
}

/// The exponent of a weight that is 2^shift too large. The base is subtracted first: base - shift would be rounded, by up to half
/// a unit of a large base, and a weight of 2^14 in f16 would become 2^16, which is infinite.
QUIRE_HD float shifted_exponent(float logit, float base, float shift) {
  return shift == 0.0f ? logit - base : (logit - base) + shift;
}

struct SoftmaxState {
  float max = -INFINITY;
  float sum = 0.0f;
};

/// The union of two key sets and the factors that bring each side's un-normalised accumulator to the union's maximum.
struct Merged {
  SoftmaxState state;
  float weight_a = 0.0f;
  float weight_b = 0.0f;
};

template <class Exp = NaturalExp>
QUIRE_HD Merged combine(const SoftmaxState& a, const SoftmaxState& b) {
  // Empty sides first: exp(-inf - -inf) would be NaN, and x * 1 keeps the other side's bits.
  if (b.max == -INFINITY) return {a, 1.0f, 0.0f};
  if (a.max == -INFINITY) return {b, 0.0f, 1.0f};
  const float max = a.max > b.max ? a.max : b.max;
  const float weight_a = Exp::exp(a.max - max);
  const float weight_b = Exp::exp(b.max - max);
  return {{max, a.sum * weight_a + b.sum * weight_b}, weight_a, weight_b};
}

/// One more logit with no value vector (an attention sink).
QUIRE_HD Merged combine_sink(const SoftmaxState& a, float sink) {
  return combine(a, SoftmaxState{sink, sink == -INFINITY ? 0.0f : 1.0f});
}

/// max + log(sum); -inf for the empty set.
QUIRE_HD float log_sum_exp(const SoftmaxState& s) { return s.max == -INFINITY ? -INFINITY : s.max + logf(s.sum); }

/// The state that a finished (normalised) partial result stands for.
QUIRE_HD SoftmaxState from_lse(float lse) { return {lse, lse == -INFINITY ? 0.0f : 1.0f}; }

/// The union of finished partial results whose log-sum-exps lses(0), ..., lses(count - 1) are natural logarithms, summed in
/// order. Part i weighs union_weight(). NaN and +inf in an lse make the union NaN.
template <class Lses>
QUIRE_HD SoftmaxState union_of(int count, Lses&& lses) {
  SoftmaxState all;
  for (int i = 0; i < count; ++i) {
    const float lse = lses(i);
    if (lse > all.max || lse != lse) all.max = lse;
  }
  if (all.max == -INFINITY) return all;
  for (int i = 0; i < count; ++i) all.sum += expf(lses(i) - all.max);
  return all;
}

/// Weight of a finished partial result in the union: 0 if the result is empty. Two parts give the bits of combine().
QUIRE_HD float union_weight(const SoftmaxState& all, float lse) {
  return all.max == -INFINITY ? 0.0f : expf(lse - all.max) / all.sum;
}

}  // namespace quire::semantics
