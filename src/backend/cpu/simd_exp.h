// exp and tanh for vector types, from the type's own arithmetic: one polynomial for every instruction set.
#pragma once

namespace quire::cpu {

/// exp(x) for x <= 88; exactly 0 below -87.34 (no denormals), NaN stays NaN. Relative error below 2 ulp.
///
/// Cody-Waite reduction x = n ln 2 + r, |r| <= ln 2 / 2, then the minimax polynomial of Cephes expf (Moshier), degree 6 in r.
template <class V>
inline __attribute__((always_inline)) typename V::Reg exp_by_polynomial(typename V::Reg x) {
  using Reg = typename V::Reg;
  const Reg n = V::round(V::mul(x, V::set1(1.44269504088896341f)));
  Reg r = V::fma(n, V::set1(-0.693359375f), x);
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  Reg p = V::set1(1.9875691500e-4f);
  p = V::fma(p, r, V::set1(1.3981999507e-3f));
  p = V::fma(p, r, V::set1(8.3334519073e-3f));
  p = V::fma(p, r, V::set1(4.1665795894e-2f));
  p = V::fma(p, r, V::set1(1.6666665459e-1f));
  p = V::fma(p, r, V::set1(5.0000001201e-1f));
  p = V::fma(p, V::mul(r, r), V::add(r, V::set1(1.0f)));
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
