// SPDX-License-Identifier: Apache-2.0
// The one description of attend()'s workspace on a GPU, shared by planning (how big) and the GPU backends (where what is).
#pragma once

#include <array>
#include <cstdint>

#include "plan/kernel.h"

namespace quire::plan_detail {

/// Sizes of the structs of src/backend/gpu/args.h, which planning must not see; the backends assert them.
inline constexpr std::int64_t kCallStateBytes = 256;
inline constexpr std::int64_t kSliceBytes = 36;

/// Lists that a plan may have.
inline constexpr std::size_t kMaxLists = 2;

/// Offsets, in bytes and multiples of 256, of what one list needs.
struct ListSpace {
  std::int64_t num_slices = 0;      ///< int32
  std::int64_t next_item = 0;       ///< int32, 128 bytes further: threads that poll one do not disturb the other
  std::int64_t units = 0;           ///< int32
  std::int64_t parts_done = 0;      ///< [max_merges][num_kv_heads] int32
  std::int64_t slices = 0;          ///< [max_slices]
  std::int64_t partial_states = 0;  ///< [max_partials][tile_rows][2] f32
  std::int64_t partial_acc = 0;     ///< [max_partials][tile_rows][v_head_dim] f32
};

struct DeviceWorkspace {
  /// The leading bytes that every call resets: the state of calls, which comes first, and the first list's few counters.
  std::int64_t reset_bytes = 0;
  std::int64_t bytes = 0;
  std::array<ListSpace, kMaxLists> lists;
};

inline DeviceWorkspace device_workspace(const Plan& plan) {
  DeviceWorkspace w;
  const auto take = [&w](std::int64_t bytes) {
    const std::int64_t at = w.bytes;
    w.bytes += (bytes + 255) / 256 * 256;
    return at;
  };
  const std::int64_t kv_heads = plan.problem.num_kv_heads;
  take(kCallStateBytes);
  w.reset_bytes = w.bytes;
  // Without a schedule kernel, no other kernel zeroes the first list's counters. Lists of fixed parts are always scheduled,
  // unless blocks deal them themselves.
  w.lists[0].parts_done = take(plan.work().lists.empty() ? 0 : plan.work().lists[0].max_merges * kv_heads * 4);
  if (!plan.work().lists.empty() && (plan.work().lists[0].split_keys == 0 || body_of(plan.work().lists[0]).deals_itself()))
    w.reset_bytes = w.bytes;
  for (std::size_t i = 0; i < plan.work().lists.size(); ++i) {
    w.lists[i].num_slices = take(256);
    w.lists[i].next_item = w.lists[i].num_slices + 128;
    w.lists[i].units = w.lists[i].num_slices + 4;
    if (i > 0) w.lists[i].parts_done = take(plan.work().lists[i].max_merges * kv_heads * 4);
  }
  for (std::size_t i = 0; i < plan.work().lists.size(); ++i) {
    const DeviceList& list = plan.work().lists[i];
    w.lists[i].slices = take(list.max_slices * kSliceBytes);
    w.lists[i].partial_states = take(list.max_partials * list.tile_rows * 2 * 4);
    w.lists[i].partial_acc = take(list.max_partials * list.tile_rows * plan.problem.out_dim() * 4);
  }
  return w;
}

}  // namespace quire::plan_detail
