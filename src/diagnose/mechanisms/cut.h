// SPDX-License-Identifier: Apache-2.0
// Ways to cut the visible keys of a row into groups: pages, tiles, splits. Shared by what drops a group and by what merges them
// wrongly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "diagnose/fault_model.h"

namespace quire::diagnose_detail {

/// Keys that a cut divides: the visible keys [from, to) of a row, the length of its sequence, and its request.
struct Extent {
  std::int64_t from = 0, to = 0, seq_len = 0, req = 0;
};

/// The group of a position.
struct Cut {
  std::string name;  ///< "page", "tile of 64 keys", "split of 4"
  std::function<std::int64_t(const Extent&, std::int64_t position)> group;
  bool splits = false;       ///< a number of parts, whatever the length
  bool of_sequence = false;  ///< the groups are those of the whole sequence: a row may see none of the last one
  /// The last group that the kernel knows of.
  std::int64_t last(const Extent& e) const { return group(e, of_sequence ? e.seq_len - 1 : e.to - 1); }
};

std::vector<Cut> cuts(const Facts& facts);

}  // namespace quire::diagnose_detail
