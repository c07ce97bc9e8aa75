// SPDX-License-Identifier: Apache-2.0
// Score rows of an item: which query row and head each is, where it lies, and which keys it sees. They are found once an item, by
// a thread a row, because a division by the group and an address of 64 bits take a warp some 30 instructions each.
#pragma once

#include "backend/cuda/tile/finish.h"
#include "backend/cuda/tile/rows.h"

namespace quire::cuda::mma {

using namespace tile;  // the parts of a tile that both tensor-core kernels use

using Byte = unsigned char;

struct ScoreRow {
  const Byte* query;  ///< address of the row; rows beyond the item's last must not be read
  int query_row;      ///< index of the query row within the request
  int head;           ///< index of the query head within its group
};

/// Fills rows [0, kRows) of an item, those beyond its end, too, by threads 0 .. kRows - 1. Readers wait for the next barrier.
template <int kRows>
__device__ inline void find_score_rows(ScoreRow (&rows)[kRows], const gpu::AttendArgs& a, const Item& item) {
  const int index = static_cast<int>(threadIdx.x);
  if (index >= kRows) return;
  const int row = item.slice.row_begin + index, query_row = row / a.group, head = row - query_row * a.group;
  const std::int64_t at =
      a.query.strides.row(0, item.kv_head * a.group + head, std::int64_t{item.lengths.first_token} + query_row);
  rows[index] = {static_cast<const Byte*>(a.query.data) + at * 2, query_row, head};
}

/// Rows of a warp, their request and their KV head: what a tile of keys is folded into.
struct RowContext {
  const gpu::AttendArgs& a;
  const gpu::Lengths& lengths;
  int kv_head;
  RowSpan span;
  const ScoreRow* rows;  ///< score rows of the warp, in shared memory

  /// This thread's row of block m and half h.
  __device__ ScoreRow row(int m, int h) const { return rows[m * 16 + h * 8 + static_cast<int>(threadIdx.x) % 32 / 4]; }
  __device__ int position(const ScoreRow& row) const { return lengths.context_len + row.query_row; }
  __device__ semantics::KeyRange keys_of(const ScoreRow& row) const { return semantics::visible_range(position(row), a.window); }
};

/// Returns the context of the warp whose first row is row `first` of the item. `rows`: the table of the item's rows; kWarpRows:
/// rows of a warp.
template <int kWarpRows>
__device__ inline RowContext context_of(const gpu::AttendArgs& a, const Item& item, const ScoreRow* rows, int first) {
  RowContext context{a, item.lengths, item.kv_head, {}, rows + first};
  const int begin = item.slice.row_begin + first, end = min(begin + kWarpRows, item.slice.row_end);
  RowSpan& span = context.span;
  span = {begin, end, 0, 0, 0, 0};
  if (begin >= end) return context;
  const semantics::KeyRange of_first = context.keys_of(rows[first]), of_last = context.keys_of(rows[first + end - begin - 1]);
  span.any_begin = static_cast<int>(of_first.begin), span.full_begin = static_cast<int>(of_last.begin);
  span.full_end = static_cast<int>(of_first.end), span.any_end = static_cast<int>(of_last.end);
  return context;
}

}  // namespace quire::cuda::mma
