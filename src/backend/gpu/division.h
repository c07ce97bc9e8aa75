// SPDX-License-Identifier: Apache-2.0
// Stage: attend, schedule. How a device is divided between two lists that are served at the same time: long requests, whose
// kernel keeps the tensor cores busy, and short ones, whose kernel keeps memory busy. An SM works for one of them.
//
// The long list's kernel begins on `units` SMs, the short one's has the rest; as these are done, the long list's
// kernel takes them over. So both should end at the same time: each gets SMs as its share of all the work.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "semantics/visible_range.h"

namespace quire::gpu {

/// Tiles of kShortKeys keys that a request of the short list has; 0 if it is of the long one.
constexpr std::int32_t kShortKeys = 64;
QUIRE_DEVICE std::int64_t short_tiles_of(const AttendArgs& a, std::int64_t query_len, std::int64_t context_len) {
  const std::int64_t rows = query_len * a.group;
  if (rows == 0 || rows > a.work.min_rows) return 0;
  const semantics::KeyRange seen = semantics::visible_range(context_len, context_len + query_len - 1, a.window);
  return (seen.end - 1) / kShortKeys - seen.begin / kShortKeys + 1;
}

/// Of all_units, an even number, those for `long_tiles` tiles each as heavy as long_weight of the `short_tiles`: an even number,
/// too, and no list that has tiles is left without.
QUIRE_DEVICE std::int32_t units_for_long(std::int64_t long_tiles, std::int64_t short_tiles, const Division& division) {
  if (long_tiles == 0) return 0;
  if (short_tiles == 0) return division.all_units;
  const std::int64_t long_work = long_tiles * division.long_weight;
  const auto units = static_cast<std::int32_t>(long_work * division.all_units / (long_work + short_tiles)) / 2 * 2;
  if (units < 2) return 2;
  return units > division.all_units - 2 ? division.all_units - 2 : units;
}

}  // namespace quire::gpu
