// Sizes and counts that kernels use: powers of two, pages, and up to 16 splits.
#include "diagnose/mechanisms/cut.h"

#include <algorithm>

#include "text/formatted.h"

namespace quire::cause {

std::vector<Cut> cuts(const fault::Facts& f) {
  std::vector<Cut> list;
  const auto tiles = [&](std::string name, std::int64_t size) {
    list.push_back({std::move(name), [size](std::int64_t, std::int64_t, std::int64_t k) { return k / size; }, false});
  };
  tiles("key", 1);
  tiles("page", f.page_size);
  for (const std::int64_t size : {8, 16, 32, 64, 128, 256, 512, 1024})
    if (size != f.page_size) tiles(formatted("tile of {} keys", size), size);
  for (const std::int64_t count : {2, 3, 4, 5, 6, 7, 8, 16})
    for (const std::int64_t unit : {std::int64_t{1}, f.page_size})
      list.push_back({formatted("split of {}{}", count, unit == 1 ? "" : " in whole pages"),
                      [count, unit](std::int64_t from, std::int64_t to, std::int64_t k) {
                        const std::int64_t units = (to - from + unit - 1) / unit;
                        return (k - from) / std::max<std::int64_t>(1, (units + count - 1) / count * unit);
                      },
                      true});
  if (!f.windowed()) return list;
  for (const std::int64_t size : {16, 32, 64, 128, 256})
    list.push_back({formatted("tile of {} keys from the row's first one on", size),
                    [size](std::int64_t from, std::int64_t, std::int64_t k) { return (k - from) / size; }, false});
  return list;
}

}  // namespace quire::cause
