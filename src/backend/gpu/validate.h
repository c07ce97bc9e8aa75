// SPDX-License-Identifier: Apache-2.0
// Stage: attend, before the first row is read. Checks lengths and the block table by the rules that keep every later read in
// bounds and every row written once: Q-T01, T02, T03, T04, T06, T07, T08, T09, T10, T16; also checks lengths against the plan's
// bounds. Sets outcome->broken; the host finds the rule and the place.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "backend/gpu/break_call.h"
#include "backend/gpu/checked_lengths.h"
#include "backend/gpu/launch_sizes.h"
#include "backend/gpu/layer.h"
#include "semantics/mask.h"

namespace quire::gpu {

/// Whether this thread finds an entry that is no page, in columns [begin, end) but those of `gap`, of entries
/// [first, first + kValidateColumns).
QUIRE_DEVICE bool has_bad_page(const AttendArgs& a, std::int32_t req, std::int64_t first, std::int64_t begin, std::int64_t end,
                               const semantics::KeyRange& gap) {
  bool bad = false;
  QUIRE_UNROLL
  for (int i = 0; i < kValidateColumns; i += kValidateLanes) {
    const std::int64_t column = first + i + thread_index() % kValidateLanes;
    if (column < begin || column >= end || column >= a.block_table.columns) continue;
    if (column >= gap.begin && column < gap.end) continue;
    const std::int64_t page = a.block_table.page(req, column);
    bad |= page < 0 || page >= a.num_pages;
  }
  return bad;
}

/// Block `block` of `blocks`, of kValidateThreads threads each. kValidateLanes threads look at kValidateColumns entries of a
/// request: a long request does not hang on one block, and a block has several short ones at a time.
QUIRE_DEVICE void validate(const AttendArgs& a, int block, int blocks) {
  bool broken = !starts_are_sound(a);
  const std::int64_t chunks = validate_chunks(a);
  const int lane = thread_index() % kValidateLanes, lanes = thread_index() / kValidateLanes;
  const std::int64_t step = std::int64_t{blocks} * kValidateUnits;
  for (std::int64_t unit = std::int64_t{block} * kValidateUnits + lanes; unit < a.num_reqs * chunks; unit += step) {
    const auto req = static_cast<std::int32_t>(unit / chunks);
    const CheckedLengths n = checked_lengths_of(a, req);
    broken |= !n.sound || n.query_len * a.group > a.most_rows || n.seq_len > a.most_keys;
    if (unit % chunks == 0 && lane == 0) atomic_add(&a.outcome->lengths, fingerprint(a, req));
    if (!n.sound || n.query_len == 0) continue;
    const Sight sight = sight_of(a, req, n.context_len, n.seq_len);
    const semantics::KeyRange seen = sight.of_rows(0, n.query_len - 1), hidden = sight.mask.gap(sight.first);
    const std::int64_t end = seen.end < n.cached_len ? seen.end : n.cached_len;
    if (seen.begin >= end) continue;
    const std::int64_t pages = (end + a.page_size - 1) / a.page_size;
    broken |= pages > a.block_table.columns;
    const semantics::KeyRange gap{(hidden.begin + a.page_size - 1) / a.page_size, hidden.end / a.page_size};
    broken |= has_bad_page(a, req, unit % chunks * kValidateColumns, seen.begin / a.page_size, pages, gap);
  }
  if (broken) break_call(a);
  if (block == 0 && thread_index() == 0)
    a.outcome->rows_due = static_cast<unsigned long long>(a.query_start_loc[a.num_reqs]) * static_cast<unsigned>(a.num_q_heads);
}

}  // namespace quire::gpu
