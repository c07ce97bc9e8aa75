// Ways to cut the visible keys of a row into groups: pages, tiles, splits. Shared by what drops a group and by what merges them
// wrongly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "faults/model.h"

namespace quire::cause {

/// The group of a position among the visible keys [from, to) of a row.
struct Cut {
  std::string name;  ///< "page", "tile of 64 keys", "split of 4"
  std::function<std::int64_t(std::int64_t from, std::int64_t to, std::int64_t position)> group;
  bool splits = false;  ///< a number of parts, whatever the length
};

std::vector<Cut> cuts(const fault::Facts& facts);

}  // namespace quire::cause
