// SPDX-License-Identifier: Apache-2.0
// Stage: attend. The lengths of one request as they come, in 64 bits: nothing is known of the values yet.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"

namespace quire::gpu {

/// `sound` if rules Q-T01, T02, T04, T06 to T09 and T16 hold as far as this request shows.
struct CheckedLengths {
  std::int64_t query_len = 0, context_len = 0, seq_len = 0, cached_len = 0;
  bool sound = false;
};

QUIRE_DEVICE CheckedLengths checked_lengths(const AttendArgs& a, std::int32_t req) {
  CheckedLengths n;
  const std::int64_t first = a.query_start_loc[req], last = a.query_start_loc[req + 1];
  n.seq_len = a.seq_lens[req];
  n.cached_len = a.cached_lens.data != nullptr ? a.cached_lens[req] : n.seq_len;
  if (first < 0 || last < first || last > a.num_tokens) return n;
  n.query_len = last - first;
  if (n.seq_len < n.query_len || n.seq_len > 0x7FFFFFFF) return n;
  n.context_len = n.seq_len - n.query_len;
  n.sound = n.cached_len >= n.context_len && n.cached_len <= n.seq_len && (n.cached_len == n.seq_len || a.key.data != nullptr);
  return n;
}

/// Rules about the batch as a whole: query_start_loc begins at 0, and ends at num_tokens or, of a padded batch, before.
QUIRE_DEVICE bool starts_are_sound(const AttendArgs& a) {
  return a.query_start_loc[0] == 0 && a.may_end_at(a.query_start_loc[a.num_reqs]);
}

}  // namespace quire::gpu
