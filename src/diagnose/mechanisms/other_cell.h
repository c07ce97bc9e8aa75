// SPDX-License-Identifier: Apache-2.0
// Cells whose sums a kernel takes for those of a cell: neighbours and first ones, of rows in a request and of heads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnose/fault_model.h"

namespace quire::diagnose_detail {

struct OtherCell {
  std::string text;  ///< "of the row before, in its request"
  std::function<RowHead(const Facts&, const Row&)> at;
};

std::vector<OtherCell> other_cells();

}  // namespace quire::diagnose_detail
