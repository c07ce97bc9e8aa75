// Stage: attend, first kernel. Lengths and the block table against the rules that keep every later read in bounds and every row
// written once: Q-T01, T02, T03, T04, T06, T07, T08, T09, T10. Sets outcome->broken; which rule broke where is for the host to
// say.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"
#include "semantics/visible_range.h"

namespace quire::gpu {

constexpr int kValidateThreads = 256;

/// One request, in 64 bits: nothing is known of the values yet. `sound` if rules Q-T01, T02, T04 and T06 to T09 hold as far as
/// this request shows.
struct CheckedLengths {
  std::int64_t context_len = 0, seq_len = 0, cached_len = 0;
  bool empty = true;
  bool sound = false;
};

QUIRE_DEVICE CheckedLengths checked_lengths(const AttendArgs& a, std::int32_t req) {
  CheckedLengths n;
  const std::int64_t first = a.query_start_loc[req], last = a.query_start_loc[req + 1];
  if (first < 0 || last < first || last > a.num_tokens) return n;
  n.seq_len = a.seq_lens[req];
  if (n.seq_len < last - first || n.seq_len > 0x7FFFFFFF) return n;
  n.context_len = n.seq_len - (last - first);
  n.cached_len = a.cached_lens.data != nullptr ? a.cached_lens[req] : n.seq_len;
  n.empty = first == last;
  n.sound = n.cached_len >= n.context_len && n.cached_len <= n.seq_len && (n.cached_len == n.seq_len || a.key.data != nullptr);
  return n;
}

/// Any number of blocks of kValidateThreads threads.
QUIRE_DEVICE void validate(const AttendArgs& a) {
  bool broken = a.query_start_loc[0] != 0 || a.query_start_loc[a.num_reqs] != a.num_tokens;
  for (std::int32_t req = block_index(); req < a.num_reqs; req += num_blocks()) {
    const CheckedLengths n = checked_lengths(a, req);
    broken |= !n.sound;
    if (!n.sound || n.empty) continue;
    const semantics::KeyRange seen = semantics::visible_range(n.context_len, n.seq_len - 1, a.window);
    const std::int64_t end = seen.end < n.cached_len ? seen.end : n.cached_len;
    if (seen.begin >= end) continue;
    std::int64_t pages = (end + a.page_size - 1) / a.page_size;
    broken |= pages > a.block_table.columns;
    if (pages > a.block_table.columns) pages = a.block_table.columns;
    for (std::int64_t column = seen.begin / a.page_size + thread_index(); column < pages; column += kValidateThreads) {
      const std::int64_t page = a.block_table.page(req, column);
      broken |= page < 0 || page >= a.num_pages;
    }
  }
  if (broken) atomic_set(&a.outcome->broken, 1);
}

}  // namespace quire::gpu
