// SPDX-License-Identifier: Apache-2.0
// Entries of the block table as attend kernels read them. validate() has refused calls in which a row sees a key of an entry that
// is no page; here no such entry is followed, though lengths or tables have changed since, or nobody has validated them.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/break_call.h"
#include "semantics/visible_pages.h"

namespace quire::gpu {

constexpr std::int64_t kNoPage = -1;

/// The entries of a request's row of the block table that may be read. The lengths of the request are sound.
QUIRE_DEVICE semantics::VisiblePages visible_pages(const AttendArgs& a, const Sight& sight, std::int64_t first_token,
                                                   std::int64_t query_len, std::int64_t cached_len) {
  semantics::VisiblePages pages;
  pages.page_size = a.page_size;
  if (query_len == 0) return pages;
  pages.keys = sight.mask.seen_by(sight.first, sight.first + query_len - 1).below(cached_len);
  if (sight.mask.has_tree())
    pages.tree = {{a.tree_bits.data + first_token * a.tree_bytes_of_row, a.tree_bits.stride},
                  a.tree_bytes_of_row,
                  query_len,
                  sight.mask.tree_begin};
  return pages;
}

/// The page in a column, or kNoPage if the entry is none, or the table has no such column.
QUIRE_DEVICE std::int64_t page_at(const AttendArgs& a, std::int64_t req, std::int64_t column) {
  if (column >= a.block_table.columns) return kNoPage;
  const std::int64_t page = a.block_table.page(req, column);
  return static_cast<std::uint64_t>(page) < static_cast<std::uint64_t>(a.num_pages) ? page : kNoPage;
}

/// Records that an attend kernel met kNoPage where a row sees a key: rows of the call are wrong, and attend_status() says so. The
/// permit of the call stays, because threads that have read the permit and threads that will read it must agree.
QUIRE_DEVICE void note_missing_page(const AttendArgs& a) {
  atomic_set(&a.outcome->broken, 1);
  if (a.ticket_word != nullptr) store_for_host(a.ticket_word, a.ticket);
}

/// page_at() for a page of which a row sees a key. Where there is no page, the call is noted as wrong, and page 0 stands in.
QUIRE_DEVICE std::int64_t seen_page_at(const AttendArgs& a, std::int64_t req, std::int64_t column) {
  const std::int64_t page = page_at(a, req, column);
  if (page == kNoPage) note_missing_page(a);
  return page == kNoPage ? 0 : page;
}

}  // namespace quire::gpu
