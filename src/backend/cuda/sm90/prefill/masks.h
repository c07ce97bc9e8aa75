// SPDX-License-Identifier: Apache-2.0
// Masks of every kind (semantics/mask.h) as a job of prefill has them: the request's mask, the keys that rows of a tile
// see, and those that each row sees.
#pragma once

#include <cstdint>

#include "backend/cuda/sm90/prefill/scheduler.h"
#include "semantics/visible_pages.h"

namespace quire::cuda::sm90::prefill {

/// A job of a call with masks.
struct MaskedJob : Job {
  static constexpr bool kMasks = true;
  gpu::Sight sight;
  int gap_begin, gap_end;  ///< keys behind the prefix that no row of the tile sees
  schedule::TileGaps<int> gaps;

  /// The item begins at the first key that one of its rows sees, as nothing before it may be read. Its ranges of keys stay in no
  /// local variable: the thread that draws items has 32 registers.
  __device__ void find_sight(const gpu::AttendArgs& a, int index) {
    gpu::WorkSlice& slice = item.slice;
    sight = gpu::sight_of(a, slice.req, item.lengths);
    const std::int64_t first_row = sight.first + slice.row_begin / a.group;
    const int behind = static_cast<int>(min(sight.mask.of_row(first_row).begin, sight.mask.tree_begin));
    gap_begin = static_cast<int>(sight.mask.prefix_end), gap_end = gap_begin > 0 ? behind : 0;
    const int begin = max(a.work.slices[index / a.num_kv_heads].key_begin, gap_begin > 0 ? 0 : behind);
    slice.key_begin = min(begin, slice.key_end);  // a tile whose rows see nothing
  }
  __device__ void skip_gap(int tile_keys) { schedule::skip_gap(item.slice, gap_begin, gap_end, tile_keys, keys, gaps); }
  __device__ bool is_in_gap(int begin, int end) const { return begin >= gap_begin && end <= gap_end; }
  /// Whether a row of the tile sees one of the keys [begin, end). Asked of entries that are no pages alone: ranges that jobs kept
  /// would be 1 KiB of shared memory more than a block has.
  __device__ bool sees(const gpu::AttendArgs& a, int begin, int end) const {
    const int first = item.slice.row_begin / a.group, last = (item.slice.row_end - 1) / a.group;
    const semantics::SeenKeys seen = sight.mask.seen_by(sight.first + first, sight.first + last);
    const auto meets = [&](const semantics::KeyRange& range) { return range.begin < end && begin < range.end; };
    if (meets(seen.prefix) || meets(seen.middle)) return true;
    const semantics::TreeBits bits{a.tree_bits.data + (item.lengths.first_token + first) * a.tree_bytes_of_row,
                                   a.tree_bits.stride};
    const semantics::TreeRows rows{bits, a.tree_bytes_of_row, last - first + 1, sight.mask.tree_begin};
    return rows.see(begin > seen.tree.begin ? begin : seen.tree.begin, end < seen.tree.end ? end : seen.tree.end);
  }
  /// Whether a row of the tile sees the key. Most keys of a tree are seen by their own row, whose bit is read first.
  __device__ bool sees_key(const gpu::AttendArgs& a, int key) const;
};

/// Keys that a score row sees: [0, prefix_end), [begin, end), and those of the tree that its bits say.
struct alignas(16) RowKeys {
  int begin, end;
  int prefix_end;
  int position;  ///< position of the row, counted from the request's first key
};

/// `query_row`: of the request.
__device__ inline RowKeys keys_of_row(const gpu::Sight& sight, int query_row) {
  const std::int64_t position = sight.first + query_row;
  const semantics::Mask& mask = sight.mask;
  const semantics::KeyRange middle = mask.seen(position, mask.prefix_end, mask.tree_begin);
  const std::int64_t in_prefix = mask.prefix_end > 0 ? mask.seen(position, 0, mask.prefix_end).end : 0;
  return {static_cast<int>(middle.begin), static_cast<int>(middle.end), static_cast<int>(in_prefix), static_cast<int>(position)};
}

/// Whether the row of token `token` sees the tree's key `key`, counted from the tree's first.
__device__ inline bool sees_in_tree(const gpu::AttendArgs& a, int token, int key) {
  const semantics::TreeBits bits{a.tree_bits.data + token * a.tree_bytes_of_row, a.tree_bits.stride};
  return key < a.most_tree_keys && bits.sees(key);
}

__device__ inline bool MaskedJob::sees_key(const gpu::AttendArgs& a, int key) const {
  const int own = key - static_cast<int>(sight.first), of_tree = key - static_cast<int>(sight.mask.tree_begin);
  const int first = item.slice.row_begin / a.group, last = (item.slice.row_end - 1) / a.group;
  if (of_tree >= 0 && own >= first && own <= last && sees_in_tree(a, item.lengths.first_token + own, of_tree)) return true;
  return sees(a, key, key + 1);
}

/// Tile `n` of the job's.
template <int kKeys>
__device__ inline KeyTileSpan key_tile(const MaskedJob& job, int n) {
  return schedule::key_tile(job.keys, job.order, job.gaps, job.item.slice, kKeys, n);
}

}  // namespace quire::cuda::sm90::prefill
