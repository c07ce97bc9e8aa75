// SPDX-License-Identifier: Apache-2.0
// What a thread knows about its score rows: which keys they see, and the running softmax.
//
// A warp holds kM blocks of 16 score rows in the layout of mma accumulators: thread l has rows l / 4 and l / 4 + 8 of each.
#pragma once

#include <cstdint>

#include "backend/gpu/args.h"
#include "semantics/softmax_state.h"
#include "semantics/visible_range.h"

namespace quire::cuda::tile {

using semantics::kLn2;
using semantics::kLog2e;

template <int kM, int kDim>
struct Rows {
  float max[kM][2];  ///< maximum of base-2 logits; the four threads of a row hold the same
  float sum[kM][2];  ///< sum over the keys of this thread's columns
  float acc[kM][kDim / 8][4];
};

/// Which score rows a warp has, and what they see.
struct RowSpan {
  int first, end;            ///< score rows of the request; the warp's rows from `end` on do not exist
  int full_begin, full_end;  ///< keys that every row sees
  int any_begin, any_end;    ///< keys that some row sees
};

__device__ inline semantics::KeyRange keys_of_row(const gpu::AttendArgs& a, const gpu::Lengths& n, int row) {
  return semantics::visible_range(n.context_len + row / a.group, a.window);
}

__device__ inline RowSpan row_span(const gpu::AttendArgs& a, const gpu::Lengths& n, int first, int last) {
  RowSpan span{first, last, 0, 0, 0, 0};
  if (span.first >= span.end) return span;
  const semantics::KeyRange of_first = keys_of_row(a, n, first), of_last = keys_of_row(a, n, span.end - 1);
  span.any_begin = static_cast<int>(of_first.begin), span.full_begin = static_cast<int>(of_last.begin);
  span.full_end = static_cast<int>(of_first.end), span.any_end = static_cast<int>(of_last.end);
  return span;
}

template <int kM, int kDim>
__device__ inline void start_rows(Rows<kM, kDim>& rows) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) rows.max[m][h] = -INFINITY, rows.sum[m][h] = 0.0f;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) rows.acc[m][i][j] = 0.0f;
  }
}

}  // namespace quire::cuda::tile
