// SPDX-License-Identifier: Apache-2.0
// Every lane belongs to one score row: it holds part of the row's scores, its running softmax, and part of its output. So what
// belongs to a row (maximum, rescaling, visible keys) needs no exchange but one between the lanes of the row.
#pragma once

#include "backend/gpu/generic_block.h"
#include "backend/hip/matrix/instructions.h"
#include "backend/hip/matrix/sizes.h"

namespace quire::hip::matrix {

template <class Gpu>
QUIRE_DEVICE int lane_index() {
  return gpu::thread_here() % Gpu::kWave;
}
/// Of the block.
template <class Gpu>
QUIRE_DEVICE int wave_index() {
  return gpu::wave_uniform(gpu::thread_here() / Gpu::kWave);
}
/// Of the 16 rows of its wave.
QUIRE_DEVICE int lane_row() { return gpu::thread_here() % kBlockRows; }
/// Which part of the row's elements it holds.
template <class Gpu>
QUIRE_DEVICE int lane_group() {
  return lane_index<Gpu>() / kBlockRows;
}

/// The score row of a lane.
struct LaneRow {
  bool exists = false;
  std::int32_t token = 0, head = 0, q_pos = 0;
  float slope = 0.0f;
  std::int32_t begin = 0, end = 0;  ///< keys that it sees; none if it does not exist
};

/// The score rows of a wave: [first, end) of the request, at most 16.
struct WaveRows {
  std::int32_t first = 0, end = 0;
  std::int32_t full_begin = 0, full_end = 0;  ///< keys that every row sees
  std::int32_t any_begin = 0, any_end = 0;    ///< keys that some row sees
};

QUIRE_DEVICE semantics::KeyRange keys_of_row(const gpu::AttendArgs& a, const gpu::Lengths& n, std::int32_t row) {
  return semantics::visible_range(n.context_len + row / a.group, a.window);
}

QUIRE_DEVICE WaveRows wave_rows(const gpu::AttendArgs& a, const gpu::GenericItem& item, std::int32_t first) {
  WaveRows rows;
  rows.first = first;
  rows.end = first + kBlockRows < item.slice.row_end ? first + kBlockRows : item.slice.row_end;
  if (rows.first >= rows.end) return rows;
  const semantics::KeyRange of_first = keys_of_row(a, item.lengths, rows.first),
                            of_last = keys_of_row(a, item.lengths, rows.end - 1);
  rows.any_begin = static_cast<std::int32_t>(of_first.begin);
  rows.full_begin = static_cast<std::int32_t>(of_last.begin);
  rows.full_end = static_cast<std::int32_t>(of_first.end);
  rows.any_end = static_cast<std::int32_t>(of_last.end);
  return rows;
}

QUIRE_DEVICE LaneRow lane_row_of(const gpu::AttendArgs& a, const gpu::GenericItem& item, const WaveRows& rows) {
  LaneRow r;
  const std::int32_t row = rows.first + lane_row();
  r.exists = row < rows.end;
  if (!r.exists) return r;
  r.token = item.lengths.first_token + row / a.group;
  r.head = item.kv_head * a.group + row % a.group;
  r.q_pos = item.lengths.context_len + row / a.group;
  r.slope = a.alibi_slopes.at(r.head, 0.0f);
  const semantics::KeyRange seen = keys_of_row(a, item.lengths, row);
  r.begin = static_cast<std::int32_t>(seen.begin);
  r.end = static_cast<std::int32_t>(seen.end);
  return r;
}

/// What a lane sums for its row: kBlocks blocks of 16 output dims.
template <class Gpu, int kBlocks>
struct RowSums {
  float max = -INFINITY;  ///< maximum of base-2 logits; all lanes of the row hold the same
  float sum = 0.0f;       ///< sum over the lane's own keys, until sum_over_lanes()
  typename Gpu::Sums acc[kBlocks];

  QUIRE_DEVICE void clear() {
    max = -INFINITY;
    sum = 0.0f;
    scale(0.0f, /*clear=*/true);
  }
  QUIRE_DEVICE void scale(float factor, bool clear = false) {
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      QUIRE_UNROLL
      for (int i = 0; i < Gpu::kSums; ++i) acc[b].x[i] = clear ? 0.0f : acc[b].x[i] * factor;
    }
  }
  QUIRE_DEVICE void sum_over_lanes() {
    QUIRE_UNROLL
    for (int mask = kBlockRows; mask < Gpu::kWave; mask *= 2) sum += gpu::shuffle_xor(sum, mask);
  }
  /// x * 0 is NaN for every x that is not finite.
  QUIRE_DEVICE bool all_finite() const {
    float zero = 0.0f;
    QUIRE_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      QUIRE_UNROLL
      for (int i = 0; i < Gpu::kSums; ++i) zero += acc[b].x[i] * 0.0f;
    }
    return zero == 0.0f;
  }
};

}  // namespace quire::hip::matrix
