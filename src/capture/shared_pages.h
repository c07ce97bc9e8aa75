// SPDX-License-Identifier: Apache-2.0
// Leading pages that requests of a problem line have in common (share=).
#pragma once

#include <algorithm>
#include <cstdint>

#include "quire/problem.hpp"

namespace quire::capture {

/// The owner of a shared page: all requests (level 0), or a group of neighbours.
struct Branch {
  std::int64_t level = 0, group = 0;
  std::int64_t page = 0;  ///< page within the level
  auto operator<=>(const Branch&) const = default;
};

/// How many leading pages of a request are shared ones: full of context, so that no request writes into them, and of the same
/// positions as the first request's.
inline std::int64_t shared_pages(const ProblemLine& line, std::int64_t request) {
  const Request& r = line.problem.reqs[static_cast<std::size_t>(request)];
  if (r.context_len < 0 || r.shift < 0 || r.key_begin != line.problem.reqs.front().key_begin) return 0;
  std::int64_t most = line.shared_pages;
  for (const SharedBranch& branch : line.branches) most += branch.pages;
  return std::min(most, r.context_len / line.problem.page_size);
}

/// Owner of page `page` of a request, one of its shared_pages().
inline Branch branch_of(const ProblemLine& line, std::int64_t request, std::int64_t page) {
  if (page < line.shared_pages) return {0, 0, page};
  page -= line.shared_pages;
  std::int64_t level = 1;
  for (const SharedBranch& branch : line.branches) {
    if (page < branch.pages) return {level, request / branch.requests, page};
    page -= branch.pages;
    ++level;
  }
  return {};
}

}  // namespace quire::capture
