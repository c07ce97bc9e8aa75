// SPDX-License-Identifier: Apache-2.0
// Block tables of problem lines, without a case: numbers stand for the pages that requests share.
#include <map>

#include "capture/shared_pages.h"
#include "quire/tools/capture.hpp"

namespace quire {

SharedPrefixes shared_prefixes_of(const ProblemLine& line, const SharingCosts& costs) {
  const auto count = static_cast<std::int64_t>(line.problem.reqs.size());
  std::int64_t columns = 0;
  for (std::int64_t r = 0; r < count; ++r) columns = std::max(columns, capture::shared_pages(line, r));
  std::map<capture::Branch, std::int32_t> pages;
  std::vector<std::int32_t> table;
  for (std::int64_t r = 0; r < count; ++r)
    for (std::int64_t j = 0; j < columns; ++j) {
      const bool shared = j < capture::shared_pages(line, r);
      const auto next = static_cast<std::int32_t>(pages.size());
      table.push_back(shared ? pages.try_emplace(capture::branch_of(line, r, j), next).first->second
                             : -1 - static_cast<std::int32_t>(r));
    }
  return find_shared_prefixes(line.problem, table, columns, costs);
}

}  // namespace quire
