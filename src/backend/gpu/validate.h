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
#include "backend/gpu/pages.h"

namespace quire::gpu {

/// Whether this thread finds an entry that is read and is no page, among entries [first, first + kValidateColumns).
QUIRE_DEVICE bool has_bad_page(const AttendArgs& a, std::int32_t req, std::int64_t first, const semantics::VisiblePages& pages,
                               const semantics::KeyRange& columns) {
  bool bad = false;
  QUIRE_UNROLL
  for (int i = 0; i < kValidateColumns; i += kValidateLanes) {
    const std::int64_t column = first + i + thread_index() % kValidateLanes;
    if (column < columns.begin || column >= columns.end || column >= a.block_table.columns) continue;
    bad |= page_at(a, req, column) == kNoPage && pages.has(column);
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
    const auto pages =
        visible_pages(a, sight_of(a, req, n.context_len, n.seq_len), a.query_start_loc[req], n.query_len, n.cached_len);
    broken |= pages.needed(a.block_table.columns) > a.block_table.columns;
    broken |= has_bad_page(a, req, unit % chunks * kValidateColumns, pages, pages.columns(pages.keys.hull()));
  }
  if (broken) break_call(a);
  if (block == 0 && thread_index() == 0)
    a.outcome->rows_due = static_cast<unsigned long long>(a.query_start_loc[a.num_reqs]) * static_cast<unsigned>(a.num_q_heads);
}

}  // namespace quire::gpu
