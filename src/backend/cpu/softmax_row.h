// Stage: attend. From raw dot products of one row to probabilities, and the row's running softmax.
// Keys that the row does not see become exact zeros and do not count.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cpu/item_view.h"
#include "backend/cpu/planted.h"
#include "semantics/score.h"
#include "semantics/softmax_state.h"

namespace quire::cpu {
namespace {

/// Turns one row of raw dot products into exp(s - max) in place, zero for keys it does not see; updates the row's state and
/// returns the factor for what the row has accumulated so far.
template <class V>
float softmax_row(float* row, TileKeys keys, const semantics::ScoreParams& params, float slope, std::int64_t tile_minus_q_pos,
                  SoftmaxState& state) {
  const std::int64_t first = keys.begin / V::kWidth * V::kWidth;
  const auto minus_inf = V::set1(-INFINITY);
  auto best = minus_inf;
  bool nan = false;
  for (std::int64_t j = first; j < keys.end; j += V::kWidth) {
    const auto distance = V::add(V::lanes(), V::set1(static_cast<float>(tile_minus_q_pos + j)));
    auto s = semantics::score<V>(V::load(row + j), params, slope, distance);
    s = V::keep(s, static_cast<int>(j), static_cast<int>(keys.begin), static_cast<int>(keys.end), minus_inf);
    best = V::max_ignoring_nan(s, best);
    nan |= V::any_nan(s);
    V::store(row + j, s);
  }
  const float tile_max = V::reduce_max(best);
  float max = tile_max > state.max ? tile_max : state.max;
  if (max == -INFINITY) {
    // No visible key with a finite score so far: contributes nothing. A NaN score must still poison the row.
    for (std::int64_t j = first; j < keys.end; j += V::kWidth) V::store(row + j, nan ? V::load(row + j) : V::set1(0.0f));
    if (nan) state = {0.0f, NAN};
    return 1.0f;
  }
  auto sum = V::set1(0.0f);
  for (std::int64_t j = first; j < keys.end; j += V::kWidth) {
    const auto p = V::exp(V::sub(V::load(row + j), V::set1(max)));
    sum = V::add(sum, p);
    V::store(row + j, p);
  }
  const float correction = state.max == max ? 1.0f : expf(state.max - max);
  state = {max, state.sum * correction + V::reduce_add(sum)};
  return QUIRE_PLANTED(maximum_not_rescaled) ? 1.0f : correction;
}

}  // namespace
}  // namespace quire::cpu
