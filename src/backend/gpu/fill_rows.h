// SPDX-License-Identifier: Apache-2.0
// Stage: attend, behind all attend kernels, in calls that ask for it. Padding rows become zero. All rows become NaN in a call
// that was refused, or that an attend kernel found broken.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/break_call.h"
#include "backend/gpu/launch_sizes.h"
#include "backend/gpu/merge_rows.h"

namespace quire::gpu {

/// Output and lse of rows [first, num_tokens), by all threads of the grid.
QUIRE_DEVICE void fill_rows(const AttendArgs& a, std::int64_t first, float output, float lse) {
  const std::int64_t rows = (a.num_tokens - first) * a.num_q_heads, step = std::int64_t{num_blocks()} * kFillThreads;
  const std::int64_t begin = std::int64_t{block_index()} * kFillThreads + thread_index();
  for (std::int64_t i = begin; i < rows * a.v_head_dim; i += step) {
    const std::int64_t row = i / a.v_head_dim, d = i % a.v_head_dim;
    const std::int64_t at = a.output_strides.row(0, row % a.num_q_heads, first + row / a.num_q_heads);
    store_output(a, at + d * a.output_strides.dim, output);
  }
  if (a.lse == nullptr) return;
  for (std::int64_t row = begin; row < rows; row += step)
    a.lse[(first + row / a.num_q_heads) * a.lse_token + row % a.num_q_heads * a.lse_head] = lse;
}

/// Fills rows, with any number of blocks of kFillThreads threads.
QUIRE_DEVICE void fill_rows(const AttendArgs& a) {
  if (is_refused(a) || is_broken(a)) {
    // Starts that break a rule do not say which rows are whose.
    if (a.nan_if_refused) fill_rows(a, 0, semantics::bits_to_float(0x7FC00000u), semantics::bits_to_float(0x7FC00000u));
    return;
  }
  if (a.zero_padding) fill_rows(a, a.query_start_loc[a.num_reqs], 0.0f, -INFINITY);
}

}  // namespace quire::gpu
