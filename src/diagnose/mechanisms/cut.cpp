// SPDX-License-Identifier: Apache-2.0
// Sizes and counts that kernels use: powers of two, pages, and up to 16 splits.
#include "diagnose/mechanisms/cut.h"

#include <algorithm>

#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {

std::vector<Cut> cuts(const Facts& f) {
  using N = std::int64_t;
  std::vector<Cut> list;
  const auto tiles = [&](const std::string& name, N size) {
    const auto group = [size](const Extent&, N k) { return k / size; };
    list.push_back({name, group, false, false});
    if (size > 1) list.push_back({name + " of the sequence", group, false, true});
  };
  tiles("key", 1);
  tiles("page", f.page_size);
  for (const N size : {8, 16, 32, 64, 128, 256, 512, 1024})
    if (size != f.page_size) tiles(formatted("tile of {} keys", size), size);
  for (const N count : {2, 3, 4, 5, 6, 7, 8, 16}) {
    for (const N unit : {N{1}, f.page_size})
      list.push_back({formatted("split of {}{}", count, unit == 1 ? "" : " in whole pages"),
                      [count, unit](const Extent& e, N k) {
                        const N units = semantics::ceil_div(e.to - e.from, unit);
                        return (k - e.from) / std::max<N>(1, semantics::ceil_div(units, count) * unit);
                      },
                      true, false});
    for (const N unit : {N{1}, f.page_size})
      list.push_back({formatted("split of {}{} of the sequence", count, unit == 1 ? "" : " in whole pages"),
                      [count, unit](const Extent& e, N k) {
                        const N units = semantics::ceil_div(e.seq_len, unit);
                        return k / std::max<N>(1, semantics::ceil_div(units, count) * unit);
                      },
                      true, true});
    list.push_back({formatted("split of {} of the sequence, ends rounded down", count),
                    [count](const Extent& e, N k) {
                      N part = k * count / e.seq_len;
                      while (part + 1 < count && (part + 1) * e.seq_len / count <= k) ++part;
                      return part;
                    },
                    true, true});
  }
  if (!f.windowed()) return list;
  for (const N size : {16, 32, 64, 128, 256})
    list.push_back({formatted("tile of {} keys from the row's first one on", size),
                    [size](const Extent& e, N k) { return (k - e.from) / size; }, false, false});
  return list;
}

}  // namespace quire::diagnose_detail
