// SPDX-License-Identifier: Apache-2.0
// Scores of a prefill tile under masks of every kind: as scores.h, with keys of each row from shared memory.
#pragma once

#include "backend/cuda/sm90/prefill/scores.h"

namespace quire::cuda::sm90::prefill {

template <typename Memory>
struct MaskedScoring {
  using Job = typename Memory::Job;
  static constexpr int kKeys = Memory::kKeys;
  using Columns = Scoring<Memory>;

  const Block<Memory> block;

  /// Keys of this thread's row `h`.
  __device__ const RowKeys& row_keys(int h) const {
    return block.shared.row_keys[Lane::group() * 64 + Lane::row_in_group() + 8 * h];
  }

  /// Describes the warp's rows, a lane each; rows that do not exist as the last one.
  __device__ void describe_rows(const Job& job, int first) const {
    const gpu::WorkSlice& slice = job.item.slice;
    const int lane = static_cast<int>(threadIdx.x) % 32, of_warp = Lane::warp_in_group() * 16 + lane % 16;
    const int row = min(first + of_warp, slice.row_end - 1) - slice.row_begin;
    __syncwarp();  // the rows of the job before are used up
    if (lane < 16) block.shared.row_keys[Lane::group() * 64 + of_warp] = keys_of_row(job.sight, block.query_row(job, row));
    __syncwarp();
  }

  __device__ Work work_of(const Job& job) const {
    const gpu::WorkSlice& slice = job.item.slice;
    const auto [first, end] = block.rows_of(slice);
    describe_rows(job, first);
    const RowKeys of_first = keys_of_row(job.sight, block.query_row(job, first - slice.row_begin));
    const RowKeys of_last = keys_of_row(job.sight, block.query_row(job, end - 1 - slice.row_begin));
    const int before =
        job.order.first_cached + (job.keys.cached_end - 1) / kKeys;  // tile n above the gap begins at (before - n) kKeys
    const int seen_begin = max(slice.key_begin, of_last.begin), seen_end = min(job.keys.cached_end, of_first.end);
    Work w{first, 0, 0, {}, block.a.score.scale * tile::kLog2e * job.k_scale};
    w.unmasked_begin = max(before + 1 - seen_end / kKeys, job.order.first_cached);
    w.unmasked_end = before + 1 - (seen_begin + kKeys - 1) / kKeys;
    return w;
  }

  /// Bits of columns_below() for the keys of a tree that the thread's row `h` sees, in the tile that begins at `first`.
  __device__ std::uint32_t of_tree(const Job& job, const KeyTileSpan& span, int first, int h) const {
    const int tree_begin = static_cast<int>(job.sight.mask.tree_begin);
    const int token = job.item.lengths.first_token + row_keys(h).position - static_cast<int>(job.sight.first);
    const int begin = max(tree_begin, span.begin);
    std::uint32_t seen = 0;
#pragma unroll 1
    for (int i = 0; i < kKeys / 4; ++i) {
      const int key = first + i / 2 * 8 + i % 2;
      if (key >= begin && key < span.end && sees_in_tree(block.a, token, key - tree_begin)) seen |= 1u << i;
    }
    return seen;
  }

  /// Dot products to logits in base 2 where that takes more than one product; -inf for keys that a row does not see.
  template <bool kPlain, int kCount>
  __device__ void finish_scores(float (&s)[kCount], const Work& w, const Job& job, const KeyTileSpan& span, float k_scale) const {
    const int first = span.first + Lane::column();
    if constexpr (!kPlain)
      Columns{block}.cap_and_slope(s, w, job.item, first, k_scale, [&](int h) { return row_keys(h).position; });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const RowKeys row = row_keys(h);
      const auto within = [&](int begin, int end) {
        return Columns::columns_below(min(end, span.end) - first) & ~Columns::columns_below(max(begin, span.begin) - first);
      };
      std::uint32_t seen = within(row.begin, row.end) | within(0, row.prefix_end);
      if (span.end > static_cast<int>(job.sight.mask.tree_begin)) seen |= of_tree(job, span, first, h);
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i)
        if ((seen >> i & 1) == 0) s[i / 2 * 4 + 2 * h + i % 2] = -INFINITY;
    }
  }

  /// End of the keys that the tile's rows [first, last] see. The last row alone does not say it: behind all keys it sees none.
  __device__ int seen_end(const Job& job, int first, int last) const {
    return static_cast<int>(job.sight.of_rows(block.query_row(job, first), block.query_row(job, last)).end);
  }

  /// True if the thread's row `h` sees the whole tile.
  __device__ bool sees_all(const Work&, const KeyTileSpan& span, int h) const {
    return row_keys(h).begin <= span.first && min(row_keys(h).end, span.end) >= span.first + kKeys;
  }
};

}  // namespace quire::cuda::sm90::prefill
