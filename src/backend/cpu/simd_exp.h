// SPDX-License-Identifier: Apache-2.0
// exp and tanh for vector types, from the type's own arithmetic: one polynomial for every instruction set.
#pragma once

namespace quire::cpu {

/// exp(x) for x <= 88; exactly 0 below -87.34 (no denormals), exactly 1 at 0, NaN stays NaN. Relative error below 2 ulp.
///
/// exp(x) = 2^n 2^r with n = round(x log2 e) and |r| <= 1/2. r is formed with log2 e in two parts (Cody & Waite), so that it is
/// as exact far from 0 as near it; 2^r is Cephes' exp2f polynomial (Moshier), of degree 6 with value 1 at 0.
template <class V>
inline __attribute__((always_inline)) typename V::Reg exp_by_polynomial(typename V::Reg x) {
  using Reg = typename V::Reg;
  const Reg n = V::round(V::mul(x, V::set1(1.44269502f)));
  Reg r = V::fma(x, V::set1(1.44269502f), V::sub(V::set1(0.0f), n));
  r = V::fma(x, V::set1(1.925963033e-8f), r);
  Reg p = V::set1(1.535336188e-4f);
  p = V::fma(p, r, V::set1(1.339887440e-3f));
  p = V::fma(p, r, V::set1(9.618437357e-3f));
  p = V::fma(p, r, V::set1(5.550332471e-2f));
  p = V::fma(p, r, V::set1(2.402264791e-1f));
  p = V::fma(p, r, V::set1(6.931472029e-1f));
  p = V::fma(p, r, V::set1(1.0f));
  return V::zero_below(x, -87.3365f, V::times_power_of_two(p, n));
}

/// tanh(x) = sign(x) (1 - e) / (1 + e), e = exp(-2|x|). Absolute error below 4 * 2^-24.
template <class V>
inline __attribute__((always_inline)) typename V::Reg tanh_by_exp(typename V::Reg x) {
  using Reg = typename V::Reg;
  const Reg one = V::set1(1.0f);
  const Reg e = exp_by_polynomial<V>(V::mul(V::abs(x), V::set1(-2.0f)));
  return V::copy_sign(V::div(V::sub(one, e), V::add(one, e)), x);
}

}  // namespace quire::cpu
