// SPDX-License-Identifier: Apache-2.0
// Stage: attend. A finished segment of a row joins what the row has so far; the weights are semantics/softmax_state.h's.
#pragma once

#include <cmath>
#include <cstdint>

#include "semantics/softmax_state.h"

namespace quire::cpu {
namespace {

using semantics::SoftmaxState;

/// total = total + part, in place. An empty side leaves the other's bits alone.
template <class V, class Faults = typename V::Faults>
void fold_row(float* total, SoftmaxState& total_state, const float* part, const SoftmaxState& part_state, std::int64_t stride) {
  if (part_state.max == -INFINITY) return;
  if (total_state.max == -INFINITY) {
    for (std::int64_t d = 0; d < stride; d += V::kWidth) V::store(total + d, V::load(part + d));
    total_state = part_state;
    return;
  }
  const semantics::Merged merged = semantics::combine(total_state, part_state);
  const auto weight_a = V::set1(Faults::weight_of_earlier(merged.weight_a));
  const auto weight_b = V::set1(merged.weight_b);
  for (std::int64_t d = 0; d < stride; d += V::kWidth)
    V::store(total + d, V::fma(V::load(part + d), weight_b, V::mul(V::load(total + d), weight_a)));
  total_state = merged.state;
}

}  // namespace
}  // namespace quire::cpu
