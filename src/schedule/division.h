// SPDX-License-Identifier: Apache-2.0
// Division of a device between two lists that are served at the same time: long requests, whose kernel keeps the tensor cores
// busy, and short ones, whose kernel keeps memory busy. An SM works for one of them.
//
// The long list's kernel begins on `units` SMs, the short one's has the rest; as these are done, the long list's kernel takes
// them over. So both should end at the same time: each gets SMs as its share of all the work.
#pragma once

#include <cstdint>

#include "semantics/qualifiers.h"
#include "semantics/visible_range.h"

namespace quire::schedule {

/// How SMs are divided between two lists.
struct Division {
  std::int32_t* units = nullptr;  ///< [1] that the long list begins with
  std::int32_t all_units = 0;     ///< 0 = the lists are served one after the other
  std::int16_t long_weight = 1;   ///< tiles of the short list that are as much work as one of the long list's
  std::int16_t given_units = 0;   ///< value of `units` where the short list is another call's; 0 = the device computes it
};

/// Keys of a tile, as work of the short list is counted.
inline constexpr int kShortTileKeys = 64;

/// Tiles of kShortTileKeys keys that a request of the short list has; 0 if it is of the long one. `a`: of the long list, with
/// the names of ShareArgs.
template <class Args>
QUIRE_HD std::int64_t short_tiles_of(const Args& a, std::int64_t query_len, std::int64_t context_len) {
  const std::int64_t rows = query_len * a.group;
  if (rows == 0 || rows > a.work.min_rows) return 0;
  const semantics::KeyRange seen = semantics::visible_range(context_len, context_len + query_len - 1, a.window);
  return (seen.end - 1) / kShortTileKeys - seen.begin / kShortTileKeys + 1;
}

/// SMs that begin with the long list: its share of the work of both, where one of `long_tiles` is as heavy as long_weight of
/// `short_tiles`. Even, as blocks of the long list run in pairs. At least 2 and at most all_units - 2 if both lists have tiles;
/// 0 or all_units if one has none. `division` has all_units and long_weight, and comes by reference: AMD's compiler reads it
/// where it is needed.
QUIRE_HD std::int32_t units_for_long(std::int64_t long_tiles, std::int64_t short_tiles, const Division& division) {
  if (long_tiles == 0) return 0;
  if (short_tiles == 0) return division.all_units;
  const std::int64_t long_work = long_tiles * division.long_weight;
  const auto units = static_cast<std::int32_t>(long_work * division.all_units / (long_work + short_tiles)) / 2 * 2;
  if (units < 2) return 2;
  return units > division.all_units - 2 ? division.all_units - 2 : units;
}

}  // namespace quire::schedule
