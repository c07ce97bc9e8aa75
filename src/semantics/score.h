// From a raw dot product to a logit: scale, soft cap, ALiBi, in this order. Masks are elsewhere (visible_range.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "semantics/host_device.h"

namespace quire::semantics {

struct ScoreParams {
  float scale = 1.0f;     ///< softmax_scale
  float soft_cap = 0.0f;  ///< 0 = none
};

/// s = scale * dot; s = cap * tanh(s / cap); s += slope * (k - q_pos).  (ALiBi: Press et al. 2021, arXiv:2108.12409.)
QUIRE_HD float score(float dot, const ScoreParams& params, float slope, std::int64_t k_minus_q_pos) {
  float s = dot * params.scale;
  if (params.soft_cap > 0.0f) s = params.soft_cap * tanhf(s / params.soft_cap);
  return s + slope * static_cast<float>(k_minus_q_pos);
}

}  // namespace quire::semantics
