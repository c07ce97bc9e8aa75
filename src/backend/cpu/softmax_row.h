// SPDX-License-Identifier: Apache-2.0
// Stage: attend. From raw dot products of one row to probabilities, and the row's running softmax.
// Keys that the row does not see become exact zeros and do not count. What comes out depends on the row and the absolute
// positions of its keys alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cpu/item_view.h"
#include "semantics/score.h"

namespace quire::cpu {
namespace {

/// Calls step(j) for each whole vector of keys, edge(j) for a vector that holds unseen keys, too: at most the first and the last.
template <class V, class Step, class Edge>
inline __attribute__((always_inline)) void for_each_vector(TileKeys keys, Step&& step, Edge&& edge) {
  std::int64_t j = keys.begin / V::kWidth * V::kWidth;
  if (j < keys.begin) {
    edge(j);
    j += V::kWidth;
  }
  for (; j + V::kWidth <= keys.end; j += V::kWidth) step(j);
  if (j < keys.end) edge(j);
}

/// Dot products -> logits in place, -inf for unseen keys; returns the largest that is not NaN. kPlain: scale only.
template <class V, bool kPlain>
float logits_of_row(float* row, TileKeys keys, const semantics::ScoreParams& params, float slope, std::int64_t tile_minus_q_pos) {
  const auto minus_inf = V::set1(-INFINITY);
  const auto scale = V::set1(params.scale);
  auto best = minus_inf;
  const auto logits = [&](std::int64_t j) {
    if constexpr (kPlain) return V::mul(V::load(row + j), scale);
    const auto distance = V::add(V::lanes(), V::set1(static_cast<float>(tile_minus_q_pos + j)));
    return semantics::score<V>(V::load(row + j), params, slope, distance);
  };
  const auto put = [&](std::int64_t j, typename V::Reg s) {
    best = V::max_ignoring_nan(s, best);
    V::store(row + j, s);
  };
  for_each_vector<V>(
      keys, [&](std::int64_t j) { put(j, logits(j)); },
      [&](std::int64_t j) {
        put(j, V::keep(logits(j), static_cast<int>(j), static_cast<int>(keys.begin), static_cast<int>(keys.end), minus_inf));
      });
  return V::reduce_max(best);
}

/// Logits of hidden keys become -inf; returns the largest of the others that is not NaN.
template <class V>
float hide_keys(float* row, TileKeys keys, const HiddenKeys& hidden) {
  auto best = V::set1(-INFINITY);
  for (std::int64_t j = keys.begin; j < keys.end; ++j)
    if (hidden[j]) row[j] = -INFINITY;
  for (std::int64_t j = keys.begin / V::kWidth * V::kWidth; j < keys.end; j += V::kWidth)
    best = V::max_ignoring_nan(V::load(row + j), best);
  return V::reduce_max(best);
}

/// Turns one row of raw dot products into exp(s - max) in place, zero for keys it does not see; updates the row's state and
/// returns the factor for what the row has accumulated so far. Writes the whole vectors that cover `keys`, nothing else.
template <class V>
float softmax_row(float* row, TileKeys keys, const semantics::ScoreParams& params, float slope, std::int64_t tile_minus_q_pos,
                  SoftmaxState& state, const HiddenKeys& hidden) {
  const std::int64_t first = keys.begin / V::kWidth * V::kWidth;
  const bool plain = slope == 0.0f && params.soft_cap <= 0.0f;
  const float logit_max = plain ? logits_of_row<V, true>(row, keys, params, slope, tile_minus_q_pos)
                                : logits_of_row<V, false>(row, keys, params, slope, tile_minus_q_pos);
  const float tile_max = hidden.of_tree ? hide_keys<V>(row, keys, hidden) : logit_max;
  const float max = tile_max > state.max ? tile_max : state.max;
  if (max == -INFINITY) {
    // No visible key with a finite score so far: contributes nothing. A NaN score must still poison the row.
    bool nan = false;
    for (std::int64_t j = first; j < keys.end; j += V::kWidth) nan |= V::any_nan(V::load(row + j));
    for (std::int64_t j = first; j < keys.end; j += V::kWidth) V::store(row + j, nan ? V::load(row + j) : V::set1(0.0f));
    if (nan) state = {0.0f, NAN};
    return 1.0f;
  }
  const auto top = V::set1(max);
  auto sum = V::set1(0.0f);
  for (std::int64_t j = first; j < keys.end; j += V::kWidth) {
    const auto p = V::exp(V::sub(V::load(row + j), top));
    sum = V::add(sum, p);
    V::store(row + j, p);
  }
  const float correction = state.max == max ? 1.0f : V::lowest(V::exp(V::set1(state.max - max)));
  state = {max, state.sum * correction + V::reduce_add(sum)};
  return V::Faults::correction(correction);
}

}  // namespace
}  // namespace quire::cpu
