// SPDX-License-Identifier: Apache-2.0
// The work that a plan holds: tiles and items of a CPU plan, lists of a GPU plan. Kernels read it, callers do not.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/plan.hpp"

namespace quire::plan_detail {

/// Query rows [row_begin, row_end) of one request and KV head (all its query heads) over keys [key_begin, key_end).
/// Rows are counted within the request. partial < 0: writes output; otherwise writes split-KV partials, starting with
/// partial index `partial`, one per (row, head of the group).
struct WorkItem {
  std::int32_t req = 0;
  std::int32_t kv_head = 0;
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int64_t key_begin = 0;
  std::int64_t key_end = 0;
  std::int64_t partial = -1;
  bool operator==(const WorkItem&) const = default;
};

/// Folds `num_partials` split-KV partials (in key order) into output rows. Partial j of (row, head) has index
/// first_partial + j * (row_end - row_begin) * group + (row - row_begin) * group + head_in_group.
struct MergeItem {
  std::int32_t req = 0;
  std::int32_t kv_head = 0;
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int64_t first_partial = 0;
  std::int32_t num_partials = 0;
  bool operator==(const MergeItem&) const = default;
};

/// Query rows [row_begin, row_end) of one request over keys [key_begin, key_end), for every KV head: a run of work items.
struct WorkTile {
  std::int32_t req = 0;
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int32_t num_parts = 1;  ///< items per KV head: 1, or one for each split_keys segment that the keys touch
  std::int64_t key_begin = 0;
  std::int64_t key_end = 0;
  std::int64_t first_item = 0;      ///< items before this tile's num_parts * num_kv_heads
  std::int64_t first_merge = 0;     ///< merges before this tile's num_kv_heads (none if num_parts is 1)
  std::int64_t first_partial = -1;  ///< first partial of KV head 0; every head has num_parts * rows * group; -1 if num_parts is 1
  bool operator==(const WorkTile&) const = default;
};

/// Part that a kernel plays for a list of a GPU plan. The kernel and the role select the code that runs.
enum class Role : std::int32_t {
  rows,            ///< rows of any number, in tiles of one height
  short_rows,      ///< few score rows of a request, in low tiles
  tall_rows,       ///< many score rows of a request, in high tiles
  decode,          ///< few score rows, in low tiles of a kernel made for decode
  decode_wide,     ///< few score rows, in higher tiles of a kernel made for decode
  decode_cluster,  ///< single query rows; a cluster of blocks folds the keys of one request and KV head
  prefill,         ///< many score rows, in tiles of a kernel made for prefill
};

/// Reason why clusters of blocks serve the decode rows of a plan, or the first condition that keeps them from it.
enum class ClusterReason : std::int32_t {
  no_choice,        ///< the kernel has one way to serve the list
  suits,            ///< clusters serve the list: they all run at once, and no block has many keys
  batch_invariant,  ///< parts of requests have a fixed size
  query_len,        ///< a request has, or may have, several query rows
  group,            ///< a group has more score rows than a low tile
  layout,
  head_dim,
  page_size,
  num_segments,  ///< requests x KV heads are none, or more than SMs
  num_keys,      ///< a block would have many keys, which other blocks could share
};

/// A work list of a GPU plan, which the device writes: slices of the requests with min_rows < query_len * group <= max_rows.
/// Score row s of a request is query row s / group, head s % group of a KV head's group. Capacities hold for every batch within
/// the bounds (src/schedule/capacities.h has the proof).
struct DeviceList {
  KernelHandle kernel;  ///< serves the list: the plan's, or one that takes what the plan's kernel leaves
  Role role = Role::rows;
  std::int64_t tile_rows = 0;  ///< score rows per tile
  std::int64_t tile_keys = 0;  ///< parts of a tile's keys begin at multiples of this
  std::int64_t min_rows = 0;
  std::int64_t max_rows = 0;
  std::int64_t split_keys = 0;  ///< keys per part; 0 = the device chooses, so that about target_items items exist
  std::int64_t target_items = 0;
  std::int64_t num_blocks = 0;  ///< thread blocks that draw items
  std::int64_t cluster = 1;     ///< blocks of a cluster, which has one request and KV head; 1 where blocks draw items alone
  ClusterReason cluster_reason = ClusterReason::no_choice;
  std::int64_t heads = 1;         ///< KV heads of a tile: 1, or 2 that lie side by side, with the rows of both
  std::int64_t max_slices = 0;    ///< (tile, part) pairs; each is num_kv_heads items
  std::int64_t max_merges = 0;    ///< tiles of several parts
  std::int64_t max_partials = 0;  ///< partial tiles, [tile_rows][v_head_dim] f32 each
  bool beside = false;            ///< list is served at the same time as the one before it, on SMs of its own
  bool masks = false;             ///< the list is served by code for masks of every kind
  std::int64_t given_units = 0;   ///< SMs that the list begins with where another call is served at the same time; else 0
  bool operator==(const DeviceList&) const = default;
};

struct Work {
  std::vector<WorkTile> tiles;    ///< CPU plan: tiles, heaviest items first
  std::vector<DeviceList> lists;  ///< GPU plan: lists, one kernel launch each
  bool operator==(const Work&) const = default;
};

/// Items share nothing but the workspace and may run in any order; the order of the indices balances the threads. `index` is in
/// [0, num_items()).
WorkItem item_of(const Plan& plan, std::int64_t index) noexcept;
/// Merge number `index`, in [0, num_merges()): one merge for each KV head of a split tile. A merge may run once all items of its
/// tile and head are done.
MergeItem merge_of(const Plan& plan, std::int64_t index) noexcept;
/// The merge that reads what item `index` writes; -1 if that item writes output itself.
std::int64_t merge_after(const Plan& plan, std::int64_t index) noexcept;

}  // namespace quire::plan_detail
