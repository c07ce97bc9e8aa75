// SPDX-License-Identifier: Apache-2.0
// Places and words of orders of axes.
#include "diagnose/axis_order.h"

#include <algorithm>

#include "text/formatted.h"

namespace quire::diagnose_detail {

RowHead AxisOrder::place(const Facts& f, const RowHead& cell) const {
  const std::array<std::int64_t, 3> sizes{f.num_tokens, f.num_kv_heads, f.group};
  const std::array<std::int64_t, 3> at{cell.token, cell.head / f.group, cell.head % f.group};
  std::int64_t flat = 0;
  for (const int axis : axes) flat = flat * sizes[Facts::at(axis)] + at[Facts::at(axis)];
  if (heads_first) return {flat % f.num_tokens, flat / f.num_tokens};
  return {flat / f.num_q_heads, flat % f.num_q_heads};
}

std::string AxisOrder::text() const {
  const char* const names[] = {"row", "KV head", "head in the group"};
  return formatted("written as [{}, {}, {}] and read as {}", names[axes[0]], names[axes[1]], names[axes[2]],
                   heads_first ? "[head, row]" : "[row, head]");
}

std::vector<AxisOrder> axis_orders() {
  std::vector<AxisOrder> list;
  for (const bool heads_first : {false, true}) {
    AxisOrder order{{0, 1, 2}, heads_first};
    do {
      const bool right = order.axes == std::array{0, 1, 2} && !heads_first;
      if (!right) list.push_back(order);
    } while (std::ranges::next_permutation(order.axes).found);
  }
  return list;
}

}  // namespace quire::diagnose_detail
