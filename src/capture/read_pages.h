// SPDX-License-Identifier: Apache-2.0
// Parts of the cache and of the block table that attention reads. poison_case() puts poison everywhere else. Made cases do,
// too, but keep pages in entries left of a window, as engines do.
#pragma once

#include "quire/problem.hpp"
#include "semantics/page_walk.h"
#include "semantics/visible_pages.h"

namespace quire::capture {

/// The keys and pages that rows of request r see. Tables and masks of the request must be valid.
inline semantics::VisiblePages read_pages(const Problem& p, const Batch& batch, std::int64_t r) {
  const Request& req = p.reqs[static_cast<std::size_t>(r)];
  const auto [prefix, middle, tree] = p.visible_ranges(req);
  const semantics::SeenKeys keys{{prefix.begin, prefix.end}, {middle.begin, middle.end}, {tree.begin, tree.end}};
  semantics::VisiblePages pages{keys.below(req.cached_len), p.page_size, {}};
  if (const Tensor& t = batch.tree_mask; t.present()) {
    const std::int64_t first_row = semantics::index_view(batch.query_start_loc)[r];
    const semantics::TreeBits bits{static_cast<const std::uint8_t*>(t.data) + first_row * t.stride[0], t.stride[1]};
    pages.tree = {bits, t.stride[0], req.query_len, req.seq_len() - req.tree_len};
  }
  return pages;
}

}  // namespace quire::capture
