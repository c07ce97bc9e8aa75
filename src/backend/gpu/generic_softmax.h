// SPDX-License-Identifier: Apache-2.0
// attend_generic: dot products of a tile into weights, and the running softmax of each row. Keys that a row does not see are left
// out.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/generic_block.h"
#include "backend/gpu/generic_products.h"
#include "semantics/score.h"
#include "semantics/softmax_state.h"

namespace quire::gpu {

constexpr int kSoftmaxLanes = kGenericThreads / kGenericTileRows;  ///< neighbouring threads of one wave that share a row
constexpr int kKeysPerLane = kGenericTileKeys / kSoftmaxLanes;

/// A maximum is a product that was rounded. A product that is fused with the subtraction of the maximum is not rounded, and may
/// differ by half a unit of a huge logit.
struct ScoreOps : semantics::FloatOps {
  QUIRE_DEVICE static float mul(float a, float b) { return gpu::mul(a, b); }
};

/// Largest over the row's lanes, on all of them. NaN is stepped over.
QUIRE_DEVICE float max_over_row(float value) {
  QUIRE_UNROLL
  for (int mask = kSoftmaxLanes / 2; mask > 0; mask /= 2) {
    const float other = shuffle_xor(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

/// Both partners add the same two numbers, so all lanes end with the same bits.
QUIRE_DEVICE float sum_over_row(float value) {
  QUIRE_UNROLL
  for (int mask = kSoftmaxLanes / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

/// Turns the row's dot products into exp(s - max) times the scale of the value, folds them into `state` (the same on all lanes of
/// the row) and leaves the factor for what was summed before in the row's `correction`.
QUIRE_DEVICE void softmax_tile(const AttendArgs& a, const TileKeys& keys, const GenericBlock& block,
                               semantics::SoftmaxState& state) {
  const int m = thread_index() / kSoftmaxLanes, lane = thread_index() % kSoftmaxLanes;
  ScoreRow& row = block.rows[m];
  float* weights = block.scores + m * kScorePitch;
  float s[kKeysPerLane];
  float tile_max = -INFINITY;
  std::uint32_t hidden = 0;  // bit j: key j of the lane is of a tree, and the row does not see it
  static_assert(kKeysPerLane <= 32);
  QUIRE_UNROLL
  for (int j = 0; j < kKeysPerLane; ++j) {
    const int key = lane + j * kSoftmaxLanes;
    s[j] = -INFINITY;
    if (key < row.begin || key >= row.end) continue;
    if (keys.of_tree && !sees_in_tree(a, *block.keys, row, keys.first + key)) {
      hidden |= 1u << j;
      continue;
    }
    const auto distance = static_cast<float>(static_cast<std::int64_t>(keys.first + key) - row.q_pos);
    s[j] = semantics::score<ScoreOps>(weights[key] * block.key_scale[key], a.score, row.slope, distance);
    tile_max = s[j] > tile_max ? s[j] : tile_max;
  }
  tile_max = max_over_row(tile_max);
  const float max = tile_max > state.max ? tile_max : state.max;
  float sum = 0.0f;
  QUIRE_UNROLL
  for (int j = 0; j < kKeysPerLane; ++j) {
    const int key = lane + j * kSoftmaxLanes;
    if (key < row.begin || key >= row.end) continue;
    if ((hidden >> j & 1u) != 0) {
      weights[key] = kUnseenWeight;
      continue;
    }
    // Only scores of -inf so far: exp(-inf - -inf) would be NaN. A NaN score must still poison the row.
    float weight = s[j] != s[j] ? s[j] : 0.0f;
    if (max != -INFINITY) weight = exp2((s[j] - max) * semantics::kLog2e);
    sum += weight;
    weights[key] = weight * block.value_scale[key];
  }
  sum = sum_over_row(sum);
  const float correction = state.max == max ? 1.0f : exp2((state.max - max) * semantics::kLog2e);
  state = {max, fma(state.sum, correction, sum)};
  if (max == -INFINITY && sum != sum) state.max = 0.0f;  // a sum of NaN means that keys were seen: the state is not the empty one
  if (lane == 0) row.correction = correction;
}

}  // namespace quire::gpu
