// SPDX-License-Identifier: Apache-2.0
// Stage: attend. From raw dot products of rows to probabilities, and each row's running softmax.
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

constexpr std::int64_t kMaxSoftmaxRows = 8;  // most rows of one call of softmax_rows()

/// Whether logits are dot products times a positive scale and nothing else. Then the largest dot product gives the largest logit,
/// and nobody stores logits.
inline bool scales_only(const AttendArgs& args, const semantics::ScoreParams& params) {
  return args.alibi_slopes == nullptr && params.soft_cap <= 0.0f && params.scale > 0.0f && params.scale < INFINITY;
}

/// The largest dot product that the row sees and that is not NaN.
template <class V>
float largest_dot(const float* row, TileKeys keys) {
  const auto minus_inf = V::set1(-INFINITY);
  auto best = minus_inf;
  for_each_vector<V>(
      keys, [&](std::int64_t j) { best = V::max_ignoring_nan(V::load(row + j), best); },
      [&](std::int64_t j) {
        const auto seen =
            V::keep(V::load(row + j), static_cast<int>(j), static_cast<int>(keys.begin), static_cast<int>(keys.end), minus_inf);
        best = V::max_ignoring_nan(seen, best);
      });
  return V::reduce_max(best);
}

/// Dot products -> exp(s - max) in place, zero for unseen keys of the same vectors; returns their sum.
template <class V>
float weigh_dots(float* row, TileKeys keys, float scale, float max) {
  const auto factor = V::set1(scale), top = V::set1(max), zero = V::set1(0.0f);
  auto sum = zero;
  const auto weights = [&](std::int64_t j) { return V::exp(V::sub(V::mul(V::load(row + j), factor), top)); };
  const auto put = [&](std::int64_t j, typename V::Reg p) {
    sum = V::add(sum, p);
    V::store(row + j, p);
  };
  for_each_vector<V>(
      keys, [&](std::int64_t j) { put(j, weights(j)); },
      [&](std::int64_t j) {
        put(j, V::keep(weights(j), static_cast<int>(j), static_cast<int>(keys.begin), static_cast<int>(keys.end), zero));
      });
  return V::reduce_add(sum);
}

/// softmax_row() for rows whose logits are scaled dot products (scales_only()), with the same bits: maxima of all rows first,
/// then their corrections, lanes being rows, then weights. So no row waits for the end of the one before. Rows without a key stay
/// as they are.
template <class V>
void softmax_rows(float* rows, std::int64_t pitch, const TileKeys* keys, std::int64_t count, const semantics::ScoreParams& params,
                  SoftmaxState* states, float* corrections, const HiddenKeys& hidden) {
  constexpr std::int64_t kLanes = (kMaxSoftmaxRows + V::kWidth - 1) / V::kWidth * V::kWidth;
  float maxima[kLanes], factors[kLanes];
  for (std::int64_t r = 0; r < count; ++r) {
    const float tile_max = keys[r].empty() ? -INFINITY : largest_dot<V>(rows + r * pitch, keys[r]) * params.scale;
    maxima[r] = tile_max > states[r].max ? tile_max : states[r].max;
  }
  for (std::int64_t r = 0; r < kLanes; ++r)
    factors[r] = r < count && states[r].max != maxima[r] ? states[r].max - maxima[r] : 0.0f;
  for (std::int64_t r = 0; r < count; r += V::kWidth) V::store(factors + r, V::exp(V::load(factors + r)));
  for (std::int64_t r = 0; r < count; ++r) {
    float* row = rows + r * pitch;
    if (keys[r].empty()) continue;
    if (maxima[r] == -INFINITY) {
      corrections[r] = softmax_row<V>(row, keys[r], params, /*slope=*/0.0f, /*tile_minus_q_pos=*/0, states[r], hidden);
      continue;
    }
    states[r] = {maxima[r], states[r].sum * factors[r] + weigh_dots<V>(row, keys[r], params.scale, maxima[r])};
    corrections[r] = V::Faults::correction(factors[r]);
  }
}

}  // namespace
}  // namespace quire::cpu
