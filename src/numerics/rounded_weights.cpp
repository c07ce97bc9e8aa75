// SPDX-License-Identifier: Apache-2.0
// The tolerance for kernels that keep softmax weights in 16 bits (numerics.md, "Rounded weights").
#include "numerics/tolerance.h"

namespace quire {

void allow_rounded_weights(Reference& expected, DType weights) {
  allow_rounded_weights(expected, weights, std::vector<bool>(static_cast<std::size_t>(expected.num_tokens), true));
}

void allow_rounded_weights(Reference& expected, DType weights, const std::vector<bool>& tokens) {
  if (weights != DType::f16 && weights != DType::bf16) return;
  const double roundoff = numerics::output_type(weights).roundoff;
  // A kernel with an fp8 cache may hold the weights of cached keys in f16, for any type of the query.
  const bool subnormals = (weights == DType::f16 || is_fp8(expected.cache)) && !expected.abs_lost.empty();
  const auto heads = static_cast<std::size_t>(expected.num_q_heads), dims = static_cast<std::size_t>(expected.v_head_dim);
  for (std::size_t row = 0; row < expected.num_keys.size(); ++row) {
    if (!tokens[row / heads]) continue;
    // output_tolerance() multiplies abs_pv by per_pv; afterwards it comes out as (per_pv + roundoff) * abs_pv + abs_lost.
    const double per_pv = numerics::row_errors(expected, static_cast<std::int64_t>(row)).per_pv;
    for (std::size_t i = row * dims; i < (row + 1) * dims; ++i)
      expected.abs_pv[i] += (roundoff * expected.abs_pv[i] + (subnormals ? expected.abs_lost[i] : 0)) / per_pv;
  }
}

}  // namespace quire
