// SPDX-License-Identifier: Apache-2.0
// attend_generic: the two products of a tile, in f32. Each sum is taken in one order that depends on nothing but its own row.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/generic_block.h"

namespace quire::gpu {

/// Dot products: thread t has one key and four rows.
struct DotProducts {
  static constexpr int kRows = 4;
  float sum[kRows] = {0.0f, 0.0f, 0.0f, 0.0f};

  QUIRE_DEVICE static int key() { return thread_index() % kGenericTileKeys; }
  QUIRE_DEVICE static int first_row() { return thread_index() / kGenericTileKeys * kRows; }

  /// Adds the products over `dims` dims of block.query and block.staged.
  QUIRE_DEVICE void add(const GenericBlock& block, const GenericItem& item, const TileKeys& keys, int dims) {
    if (key() < keys.begin || key() >= keys.end || first_row() >= item.num_rows) return;
    const auto* k = reinterpret_cast<const Float4*>(block.staged + key() * kDimPitch);
    const auto* q = reinterpret_cast<const Float4*>(block.query + first_row() * kDimPitch);
    QUIRE_NO_UNROLL
    for (int d = 0; d < (dims + 3) / 4; ++d) {
      const Float4 kd = k[d];
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Float4 qd = q[r * (kDimPitch / 4) + d];
        sum[r] = fma(qd.w, kd.w, fma(qd.z, kd.z, fma(qd.y, kd.y, fma(qd.x, kd.x, sum[r]))));
      }
    }
  }
  QUIRE_DEVICE void store(const GenericBlock& block) const {
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) block.scores[(first_row() + r) * kScorePitch + key()] = sum[r];
  }
};
static_assert(kGenericThreads / kGenericTileKeys * DotProducts::kRows == kGenericTileRows);

/// Un-normalised output: thread t has two rows and, of each block of dims, four dims.
struct Accumulator {
  static constexpr int kRows = 2;
  static constexpr int kBlocks = kOutDims / kDimBlock;
  static constexpr int kLanes = kDimBlock / 4;
  Float4 sum[kBlocks][kRows];

  QUIRE_DEVICE static int dim() { return thread_index() % kLanes * 4; }  ///< within each block of dims
  QUIRE_DEVICE static int first_row() { return thread_index() / kLanes * kRows; }

  QUIRE_DEVICE void clear() {
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) sum[b][r] = {0.0f, 0.0f, 0.0f, 0.0f};
  }
};
static_assert(kGenericThreads / Accumulator::kLanes * Accumulator::kRows == kGenericTileRows);

QUIRE_DEVICE void scale_by(Float4& sum, float factor) { sum = {sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor}; }

QUIRE_DEVICE void add_value(Float4& sum, float weight, const Float4& v) {
  sum = {fma(weight, v.x, sum.x), fma(weight, v.y, sum.y), fma(weight, v.z, sum.z), fma(weight, v.w, sum.w)};
}

/// The weight of a key of a tree that a row does not see. No weight is negative.
constexpr float kUnseenWeight = -1.0f;

/// Adds weight * value over the keys that each of the thread's two rows sees: a value that a row does not see may be NaN.
QUIRE_DEVICE void add_values(const GenericBlock& block, Float4 (&sum)[Accumulator::kRows], bool of_tree) {
  const int m = Accumulator::first_row();
  const ScoreRow &upper = block.rows[m], &lower = block.rows[m + 1];
  scale_by(sum[0], upper.correction);
  scale_by(sum[1], lower.correction);
  const float* weights = block.scores + m * kScorePitch;
  const float* v = block.staged + Accumulator::dim();
  const auto value = [&](int key) { return *reinterpret_cast<const Float4*>(v + key * kDimPitch); };
  if (of_tree) {
    QUIRE_NO_UNROLL
    for (int key = upper.begin; key < upper.end; ++key) {
      if (!(weights[key] < 0.0f)) add_value(sum[0], weights[key], value(key));
      if (lower.begin < lower.end && !(weights[kScorePitch + key] < 0.0f))
        add_value(sum[1], weights[kScorePitch + key], value(key));
    }
    return;
  }
  // Borders never decrease from row to row: first keys of the upper row alone, then of both rows, then of the lower row alone.
  int key = upper.begin;
  for (; key < upper.end && key < lower.begin; ++key) add_value(sum[0], weights[key], value(key));
  for (key = lower.begin; key < upper.end; ++key) {
    const Float4 both = value(key);
    add_value(sum[0], weights[key], both);
    add_value(sum[1], weights[kScorePitch + key], both);
  }
  for (; key < lower.end; ++key) add_value(sum[1], weights[kScorePitch + key], value(key));
}

}  // namespace quire::gpu
