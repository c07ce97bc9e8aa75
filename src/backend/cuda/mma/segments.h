// SPDX-License-Identifier: Apache-2.0
// The keys of an item by their scales: what the cache holds is scaled, this step's own rows are not. Where types are
// the same and there are no scales there is one segment, so that a row folds the same tiles wherever cached_len lies.
#pragma once

#include "backend/cuda/mma/fold_tile.h"
#include "backend/cuda/tile/finish.h"

namespace quire::cuda::mma {

/// Keys [begin, end) under one set of scales.
struct Segment {
  int begin, end;
  Logits logits;
  float v_scale;
  bool fresh;  ///< keys are rows of `key` and `value`, not of the cache
};

/// Number of segments: 2 if fresh keys are a segment of their own, because caches have scales or `apart` demands it.
__device__ inline int num_segments(const gpu::AttendArgs& a, bool apart) {
  return apart || a.k_scale.data != nullptr || a.v_scale.data != nullptr ? 2 : 1;
}
/// Segment `index` of num_segments(): all keys of an item, or its cached keys (0) and its fresh ones (1).
__device__ inline Segment segment_of(const gpu::AttendArgs& a, const Item& item, int index, bool apart) {
  const int border = num_segments(a, apart) == 2 ? item.lengths.cached_len : INT32_MAX;
  Segment s;
  s.begin = index == 0 ? item.slice.key_begin : max(item.slice.key_begin, border);
  s.end = index == 0 ? min(item.slice.key_end, border) : item.slice.key_end;
  const bool cached = index == 0;
  s.logits.scale = a.score.scale * (cached && a.k_scale.data != nullptr ? a.k_scale.data[item.kv_head * a.k_scale.stride] : 1.0f);
  s.logits.soft_cap = a.score.soft_cap;
  s.v_scale = cached && a.v_scale.data != nullptr ? a.v_scale.data[item.kv_head * a.v_scale.stride] : 1.0f;
  s.logits.base2 = s.logits.scale * kLog2e;
  s.fresh = !cached;
  s.logits.plain = a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr;
  return s;
}

/// Brings what was summed so far to real units.
template <int kM, int kDim>
__device__ inline void scale_values(Rows<kM, kDim>& rows, float v_scale) {
  if (v_scale == 1.0f) return;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) rows.acc[m][i][j] *= v_scale;
}

/// The four threads of a row hold the sums of their columns; afterwards each holds the whole sum.
template <int kM, int kDim>
__device__ inline void sum_over_columns(Rows<kM, kDim>& rows) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[m][h] += __shfl_xor_sync(~0u, rows.sum[m][h], 1);
      rows.sum[m][h] += __shfl_xor_sync(~0u, rows.sum[m][h], 2);
    }
}

/// Whether no accumulator of this thread is infinite or NaN.
template <int kM, int kDim>
__device__ inline bool all_finite(const Rows<kM, kDim>& rows) {
  float zero = 0.0f;  // x * 0 is NaN for every such x
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) zero += rows.acc[m][i][j] * 0.0f;
  return zero == 0.0f;
}

}  // namespace quire::cuda::mma
