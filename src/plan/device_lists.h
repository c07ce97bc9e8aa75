// SPDX-License-Identifier: Apache-2.0
// GPU plans: how much room the device's own planning needs, whatever lengths it finds, and the lists that several kernels share.
#pragma once

#include <cstdint>
#include <limits>

#include "plan/kernel.h"

namespace quire::plan_detail {

inline constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
/// Keys of a part of batch_invariant plans: long enough that most requests are one part. A change of this number changes bits.
inline constexpr std::int64_t kInvariantSplitKeys = 4096;

/// Room of a list beyond that of tiles of its own height.
struct Room {
  std::int64_t lowest_tile_rows;  ///< score rows of the lowest tiles that may be made in the list's place
  bool empty_requests = false;    ///< requests without rows have numbers, too
  std::int64_t mergers = 1;       ///< counters of a merge
  std::int64_t heights = 1;       ///< tiles of partial results may be that many times as high
};

/// Sets max_slices, max_merges and max_partials from plan.bounds, as src/schedule/capacities.h proves.
void set_capacities(DeviceList& list, const Plan& plan, const Room& room);

/// Tiles of a kernel with two lists: decode rows and the rest.
struct ShortAndTall {
  std::int64_t short_rows, tall_rows;  ///< score rows of a tile
  std::int64_t tile_keys;
  std::int64_t blocks_per_unit;  ///< thread blocks of an SM or CU
};
/// The rest, with capacities to be set.
DeviceList tall_list(const Plan& plan, KernelHandle kernel, const ShortAndTall& tiles);
std::vector<DeviceList> short_and_tall_lists(const Plan& plan, KernelHandle kernel, const ShortAndTall& tiles);

/// Whether a kernel may round the softmax weights of a plan's rows, and a row's bits may depend on the list that serves it.
inline bool may_round_weights(const Plan& plan) { return !plan.exact_weights && !plan.batch_invariant; }

/// The lists by which the kernel of another row serves a plan.
std::vector<DeviceList> lists_of(const KernelRow& row, const Plan& plan);

/// The bounds of a problem whose lengths are known.
Bounds bounds_of(const Problem& problem);

/// Fills plan.lists from plan.bounds; fails if a count would not fit the device's 32-bit numbers.
Status size_lists(Plan& plan);

}  // namespace quire::plan_detail
