// SPDX-License-Identifier: Apache-2.0
// Results stored in another order of their axes: row, KV head and head in the group, read as [row, head] or as [head, row].
#pragma once

#include <array>
#include <string>
#include <vector>

#include "diagnose/fault_model.h"

namespace quire::diagnose_detail {

struct AxisOrder {
  std::array<int, 3> axes{0, 1, 2};  ///< the order of the store: 0 row, 1 KV head, 2 head in the group
  bool heads_first = false;          ///< the reader takes the result for [head, row], not for [row, head]

  /// The place where the reader finds the result of `cell`.
  RowHead place(const Facts& facts, const RowHead& cell) const;
  std::string text() const;
};

/// All orders but the right one. Axes of size 1 make some of them equal.
std::vector<AxisOrder> axis_orders();

}  // namespace quire::diagnose_detail
