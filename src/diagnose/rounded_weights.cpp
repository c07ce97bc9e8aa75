// The tolerance for kernels that keep softmax weights in 16 bits (docs/numerics.md, "Rounded weights").
#include "diagnose/tolerance.h"

namespace quire {

void allow_rounded_weights(Reference& expected, DType weights) {
  allow_rounded_weights(expected, weights, std::vector<bool>(static_cast<std::size_t>(expected.num_tokens), true));
}

void allow_rounded_weights(Reference& expected, DType weights, const std::vector<bool>& tokens) {
  if (weights != DType::f16 && weights != DType::bf16) return;
  const double roundoff = numerics::output_type(weights).roundoff;
  const auto heads = static_cast<std::size_t>(expected.num_q_heads), dims = static_cast<std::size_t>(expected.head_dim);
  for (std::size_t row = 0; row < expected.num_keys.size(); ++row) {
    if (!tokens[row / heads]) continue;
    // output_tolerance() multiplies abs_pv by `per_term`; afterwards it comes out as (per_term + roundoff) * abs_pv.
    const double per_term =
        numerics::sum_error(expected.num_keys[row]) + numerics::kWeightRoundings * numerics::kAccumulatorRoundoff;
    const double factor = 1 + roundoff / per_term;
    for (std::size_t d = 0; d < dims; ++d) expected.abs_pv[row * dims + d] *= factor;
  }
}

}  // namespace quire
