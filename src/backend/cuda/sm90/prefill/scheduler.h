// SPDX-License-Identifier: Apache-2.0
// One item of prefill work as all roles of a block see it: a tile of score rows of one request and KV head, and the tiles of keys
// that it meets (schedule/key_tiles.h). Cached tiles come first where what is cached has scales or another type: all sums of
// cached values are then multiplied by v_scale at one place.
#pragma once

#include "backend/cuda/tile/finish.h"
#include "schedule/key_tiles.h"

namespace quire::cuda::sm90::prefill {

using KeyTileSpan = schedule::KeyTileSpan<int>;

inline constexpr int kNoMoreJobs = -1;  ///< value of cached_tiles that ends the loop over jobs

/// Written by one thread, read by all.
struct Job {
  static constexpr bool kMasks = false;
  tile::Item item;
  schedule::KeyTiles<int> keys;
  /// Least position of a row in instances without masks: the last key's where every row sees every key.
  int least_position;
  int first_query;  ///< query row of the request that the tile's first score row belongs to
  schedule::KeyTileOrder<int> order;
  float k_scale;    ///< scale of cached keys, times the scale of an 8-bit query
  float v_scale;    ///< scale of cached values; where fresh tiles follow, it multiplies what was summed before them
  int scaled_at;    ///< tile before which sums are multiplied by v_scale; -1: none
  float out_scale;  ///< factor of the sum over all tiles
  bool plain;       ///< the softmax scale is all that is done to a dot product, but for k_scale

  __device__ int tiles() const { return keys.count(); }
  __device__ bool ends_all() const { return keys.cached_tiles == kNoMoreJobs; }
  __device__ bool is_fresh(int n) const { return order.is_fresh(keys, n); }
};

/// The job of item `index`. AnyJob: Job or MaskedJob (masks.h). `apart`: cached and fresh keys differ by type.
template <typename AnyJob, int kKeys>
__device__ inline void find_job(const gpu::AttendArgs& a, int index, bool apart, AnyJob& job) {
  job.item = tile::item_at(a, index);
  if constexpr (AnyJob::kMasks) job.find_sight(a, index);
  const gpu::WorkSlice& slice = job.item.slice;
  job.first_query = slice.row_begin / a.group;
  job.least_position = a.has_masks ? job.item.lengths.seq_len() - 1 : 0;
  const int cached = job.item.lengths.cached_len;
  schedule::find_key_tiles(slice, cached, kKeys, job.keys);
  if constexpr (AnyJob::kMasks) job.skip_gap(kKeys);
  const bool cached_first = apart || a.k_scale.data != nullptr || a.v_scale.data != nullptr;
  schedule::find_order(job.keys, cached_first, job.order);
  job.k_scale = a.k_scale.at(job.item.kv_head, 1.0f) * a.q_scale.at(job.item.kv_head, 1.0f);
  job.v_scale = a.v_scale.at(job.item.kv_head, 1.0f);
  const bool apart_tiles = cached_first && job.keys.fresh_tiles > 0;
  job.scaled_at = apart_tiles && job.keys.cached_tiles > 0 ? job.order.first_fresh : -1;
  job.out_scale = apart_tiles ? 1.0f : job.v_scale;
  job.plain = a.score.soft_cap == 0.0f && a.alibi_slopes.data == nullptr && a.score.scale > 0.0f && job.k_scale > 0.0f;
}

/// Tile `n` of the job's. Computed for each tile, as registers are scarcer than arithmetic.
template <int kKeys>
__device__ inline KeyTileSpan key_tile(const Job& job, int n) {
  return schedule::key_tile(job.keys, job.order, job.item.slice, kKeys, n);
}

}  // namespace quire::cuda::sm90::prefill
