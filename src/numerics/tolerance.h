// SPDX-License-Identifier: Apache-2.0
// Tolerance: the largest distance of a correct kernel from the fp64 reference. numerics.md derives every constant under its name
// here; tests/diagnose compares the values. No constant is tuned to make a test pass.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "quire/tools/compare.hpp"

namespace quire::numerics {

inline constexpr double kAccumulatorRoundoff = 0x1p-24;  ///< u: kernels accumulate in f32
inline constexpr double kLambda = 8;                     ///< a sum exceeds its bound with probability <= 2 exp(-kLambda^2 / 2)
inline constexpr double kRoundingsPerKey = 7;            ///< product, sum, rescale, and an exp of 2u (counts 2^2)
inline constexpr double kScoreRoundings = 16;            ///< everything between a dot product and the argument of exp
inline constexpr double kWeightRoundings = 8;            ///< exp itself, v_scale, reciprocal, normalisation
inline constexpr double kLogRoundings = 4;               ///< log and the sum m + log(denominator)
inline constexpr double kSecondOrder = 1.0625;           ///< products of errors, for score errors up to 1/32

// Profiles.
inline constexpr double kHalfSubnormal = 0x1p-25;         ///< an f16 weight below 2^-14 is off by this, or by itself, at most
inline constexpr double kTf32Roundoff = 0x1p-10;          ///< TF32 keeps 11 bits; some kernels cut the rest off
inline constexpr double kStoredScoreRoundings = 2;        ///< q k, and the product with softmax_scale, stored in 16 bits
inline constexpr double kStoredCapRoundings = 2;          ///< tanh, and the product with cap; s / cap counts as a score's
inline constexpr double kAccumulatorRoundingsPerKey = 2;  ///< sum and rescale of a 16-bit accumulator
inline constexpr double kMostScoreError = 0.75;  ///< relative error of a denominator; above, a profile's scores say nothing

// 8-bit outputs.
inline constexpr double kLargestE4m3fn = 448;  ///< largest finite value, at which stores of fp8_e4m3fn saturate

/// Error of rounding to an output type: |round(x) - x| <= roundoff * |x| + smallest; |x| >= overflow becomes infinite.
/// fp8_e4m3fn saturates instead: the reference ensures |x| <= kLargestE4m3fn.
struct OutputType {
  double roundoff;
  double smallest;
  double overflow;
};
inline OutputType output_type(DType dtype) {
  switch (dtype) {
    case DType::f16: return {0x1p-11, 0x1p-24, 65520.0};
    case DType::bf16: return {0x1p-8, 0x1p-133, 0x1.FFp127};
    case DType::fp8_e4m3fn: return {0x1p-4, 0x1p-10, std::numeric_limits<double>::infinity()};
    default: return {0x1p-24, 0x1p-149, 0x1.FFFFFFp127};
  }
}

/// Type by which an output is judged: the batch's output type, or `observed` if the reference was made by hand and has none.
inline OutputType output_type(const Reference& ref, DType observed) {
  return output_type(ref.output == DType::none ? observed : ref.output);
}

/// gamma~_n(lambda) = exp(lambda sqrt(n) u + n u^2 / (1 - u)) - 1 (Higham & Mary 2019, theorem 2.4).
inline double gamma(double n, double u = kAccumulatorRoundoff) {
  return std::expm1(kLambda * std::sqrt(n) * u + n * u * u / (1 - u));
}

/// delta_s per unit of M_k.
inline double score_error(std::int64_t head_dim) {
  return gamma(static_cast<double>(head_dim)) + kScoreRoundings * kAccumulatorRoundoff;
}

/// Relative error of a sum over n keys, rescaling and merging included. The sink counts as a key.
inline double sum_error(std::int64_t num_keys) { return gamma(kRoundingsPerKey * static_cast<double>(num_keys + 1)); }

/// Factors that all elements of a row share: the error of out_d per unit of abs_pv_d, abs_spv_d and |out_d|.
struct RowErrors {
  double per_pv, per_spv, per_out;
};
inline RowErrors row_errors(const Reference& ref, std::int64_t row) {
  const auto r = static_cast<std::size_t>(row);
  const double sum = sum_error(ref.num_keys[r]), score = score_error(ref.head_dim);
  return {sum + kWeightRoundings * kAccumulatorRoundoff, score, sum + score * ref.score_mag[r]};
}

/// Tolerance of element `i` = row * v_head_dim + d of the reference.
inline double output_tolerance(const Reference& ref, const RowErrors& row, std::int64_t i, const OutputType& type) {
  const auto e = static_cast<std::size_t>(i);
  const double out = std::fabs(ref.out[e]);
  const double numerator = row.per_pv * ref.abs_pv[e] + row.per_spv * ref.abs_spv[e];
  return kSecondOrder * (numerator + row.per_out * out + type.roundoff * out) + type.smallest;
}
inline double output_tolerance(const Reference& ref, std::int64_t row, std::int64_t i, const OutputType& type) {
  return output_tolerance(ref, row_errors(ref, row), i, type);
}

/// lse is always f32 and its error absolute: d lse = sum p_k delta_k + error of the sum + error of the log.
inline double lse_tolerance(const Reference& ref, std::int64_t row) {
  const auto r = static_cast<std::size_t>(row);
  const double log_part = std::fabs(ref.lse[r]) + std::log(static_cast<double>(ref.num_keys[r]) + 1.0);
  return kSecondOrder * (score_error(ref.head_dim) * ref.score_mag[r] + sum_error(ref.num_keys[r]) +
                         kLogRoundings * kAccumulatorRoundoff * log_part) +
         0x1p-149;
}

/// Errors of scores under a profile: `per_magnitude` multiplies M_k; `stored` is the roundoff of every stored step (0: no step is
/// stored); `plain` is score_error(), the factor that the tolerance applies to the whole.
struct ScoreErrors {
  double per_magnitude, stored, plain;
};
ScoreErrors score_errors(const NumericsProfile& profile, std::int64_t head_dim);

/// Widens abs_pv by the errors of a profile's weights, accumulator and products. The reference handles scores, K and V itself.
void pay_for(Reference& expected, const NumericsProfile& profile);

enum class ElementVerdict { fine, over_tolerance, wrong_class };

/// Infinite where rounding must, or may, overflow; NaN only where the reference is NaN.
inline ElementVerdict judge(double observed, double expected, double tolerance, double overflow) {
  if (std::isnan(expected)) return std::isnan(observed) ? ElementVerdict::fine : ElementVerdict::wrong_class;
  if (std::isnan(observed)) return ElementVerdict::wrong_class;
  const double slack = std::isfinite(tolerance) ? tolerance : 0.0;
  if (std::isinf(observed)) {
    const bool may_overflow = std::fabs(expected) + slack >= overflow;
    return may_overflow && std::signbit(observed) == std::signbit(expected) ? ElementVerdict::fine : ElementVerdict::wrong_class;
  }
  if (std::fabs(expected) - slack >= overflow) return ElementVerdict::wrong_class;
  return std::fabs(observed - expected) <= tolerance ? ElementVerdict::fine : ElementVerdict::over_tolerance;
}

}  // namespace quire::numerics
