// SPDX-License-Identifier: Apache-2.0
// One item of prefill work as all roles of a block see it: a tile of score rows of one request and KV head, and the tiles of keys
// that it meets, last first.
//
// Keys come from two places: the cache, in tiles at multiples of kKeys, and this step's `key` and `value`, in tiles that begin
// at the first of them. A tile never holds both. Fresh tiles come before cached ones, as they come later in the request; where
// what is cached has scales or another type they come after them: all sums of cached values are then multiplied by v_scale
// at one place.
#pragma once

#include "backend/cuda/tile/finish.h"

namespace quire::cuda::sm90::prefill {

/// Keys [begin, end) of a tile are there and seen by some row; its first row is position `first`.
struct KeyTileSpan {
  int first, begin, end;
  bool fresh;  ///< rows of `key` and `value`
};

inline constexpr int kNoMoreJobs = -1;  ///< as cached_tiles

/// Written by one thread, read by all.
struct Job {
  tile::Item item;
  int cached_end;  ///< positions [key_begin, cached_end) are read from the cache, those up to key_end are fresh
  int fresh_begin;
  int fresh_tiles;
  int cached_tiles;
  /// Least position of a row: the last key's where every row sees every key, the one mask that prefill takes (cuda_sm90.cpp).
  int least_position;
  int first_query;                ///< query row of the request that the tile's first score row belongs to
  int first_fresh, first_cached;  ///< tiles
  float k_scale;                  ///< of cached keys, times that of an 8-bit query
  float v_scale;                  ///< of cached values, if fresh tiles come after them: then what was summed is multiplied by it
  int scaled_at;                  ///< in this tile; -1: in none
  float out_scale;                ///< what is summed of all tiles is multiplied by it
  bool plain;                     ///< the softmax scale is all that is done to a dot product, but for k_scale

  __device__ int tiles() const { return fresh_tiles + cached_tiles; }
  __device__ bool is_fresh(int n) const { return n >= first_fresh && n < first_fresh + fresh_tiles; }
};

/// `apart`: cached and fresh keys differ by type.
template <int kKeys>
__device__ inline Job job_at(const gpu::AttendArgs& a, int index, bool apart) {
  Job job;
  job.item = tile::item_at(a, index);
  const gpu::WorkSlice& slice = job.item.slice;
  job.first_query = slice.row_begin / a.group;
  job.least_position = a.has_masks ? job.item.lengths.seq_len() - 1 : 0;
  const int cached = job.item.lengths.cached_len;
  job.cached_end = min(slice.key_end, cached);
  job.fresh_begin = max(slice.key_begin, cached);
  job.cached_tiles = job.cached_end <= slice.key_begin ? 0 : (job.cached_end - 1) / kKeys - slice.key_begin / kKeys + 1;
  job.fresh_tiles = slice.key_end <= job.fresh_begin ? 0 : (slice.key_end - job.fresh_begin - 1) / kKeys + 1;
  const bool cached_first = apart || a.k_scale.data != nullptr || a.v_scale.data != nullptr;
  job.first_fresh = cached_first ? job.cached_tiles : 0;
  job.first_cached = cached_first ? 0 : job.fresh_tiles;
  job.k_scale = a.k_scale.at(job.item.kv_head, 1.0f) * a.q_scale.at(job.item.kv_head, 1.0f);
  job.v_scale = a.v_scale.at(job.item.kv_head, 1.0f);
  const bool apart_tiles = cached_first && job.fresh_tiles > 0;
  job.scaled_at = apart_tiles && job.cached_tiles > 0 ? job.first_fresh : -1;
  job.out_scale = apart_tiles ? 1.0f : job.v_scale;
  job.plain = a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr && a.score.scale > 0.0f && job.k_scale > 0.0f;
  return job;
}

/// Tile `n` of the job's. Computed for each tile, as registers are scarcer than arithmetic.
template <int kKeys>
__device__ inline KeyTileSpan key_tile(const Job& job, int n) {
  const gpu::WorkSlice& slice = job.item.slice;
  if (job.is_fresh(n)) {
    const int later = job.first_fresh + job.fresh_tiles - 1 - n;  // tiles between it and the first fresh key
    return {job.fresh_begin + later * kKeys, job.fresh_begin, slice.key_end, true};
  }
  const int last = (job.cached_end - 1) / kKeys;
  return {(last - (n - job.first_cached)) * kKeys, slice.key_begin, job.cached_end, false};
}

}  // namespace quire::cuda::sm90::prefill
