// SPDX-License-Identifier: Apache-2.0
// Stage: attend. The lengths of one request as they come, in 64 bits: nothing is known of the values yet.
#pragma once

#include "backend/gpu/runtime.h"

#include "backend/gpu/args.h"

namespace quire::gpu {

/// `sound` if rules Q-T01, T02, T04, T06 to T09, T16, T18 to T21 and Q-V06 to V08 hold as far as this request shows.
struct CheckedLengths {
  std::int64_t query_len = 0, context_len = 0, seq_len = 0, cached_len = 0;
  bool sound = false;
};

/// Rules Q-V06 to Q-V08 of a request, whose seq_len is sound.
QUIRE_DEVICE bool shapes_are_sound(const AttendArgs& a, std::int32_t req, std::int64_t seq_len) {
  constexpr std::int64_t kMost = 0x7FFFFFFF;
  if (a.prefix_lens.data != nullptr && a.prefix_lens[req] < 0) return false;
  const std::int64_t tree_len = a.tree_lens.data != nullptr ? a.tree_lens[req] : 0;
  if (tree_len < 0 || tree_len > seq_len || tree_len > a.most_tree_keys) return false;
  if (a.spans.data == nullptr) return true;
  const semantics::SpanList spans = spans_of(a, req);
  std::int64_t last = 0;
  bool ended = false;
  QUIRE_NO_UNROLL
  for (std::int64_t i = 0; i < spans.count; ++i) {
    const semantics::KeyRange span = spans.entry(i);
    const bool empty = span.begin == span.end;
    if (span.begin < 0 || span.end < span.begin || span.end > kMost || (!empty && (ended || span.begin < last))) return false;
    ended = ended || empty;
    if (!empty) last = span.end;
  }
  return true;
}

/// Rules Q-T18 to Q-T21 of a request whose lengths are sound otherwise.
QUIRE_DEVICE bool masks_are_sound(const AttendArgs& a, std::int32_t req, const CheckedLengths& n) {
  constexpr std::int64_t kMost = 0x7FFFFFFF;
  const std::int64_t key_begin = a.key_begin.data != nullptr ? a.key_begin[req] : 0;
  if (key_begin < 0 || key_begin > kMost - n.seq_len) return false;
  if (a.causal.data != nullptr && a.causal.data[req * a.causal.stride] > 1) return false;
  if (!shapes_are_sound(a, req, n.seq_len)) return false;
  const bool at_end = n.context_len >= 0;
  if (a.q_begin.data == nullptr) return at_end || n.cached_len == n.seq_len;
  const std::int64_t q_begin = a.q_begin[req];
  if (q_begin < 0 || q_begin > kMost - n.query_len) return false;
  return n.cached_len == n.seq_len || (at_end && q_begin - key_begin == n.context_len);
}

/// kMasks: of any batch. A request may have fewer keys than rows if it is not causal or has a q_begin.
template <bool kMasks = false>
QUIRE_DEVICE CheckedLengths checked_lengths(const AttendArgs& a, std::int32_t req) {
  CheckedLengths n;
  const std::int64_t first = a.query_start_loc[req], last = a.query_start_loc[req + 1];
  n.seq_len = a.seq_lens[req];
  n.cached_len = a.cached_lens.data != nullptr ? a.cached_lens[req] : n.seq_len;
  if (first < 0 || last < first || last > a.num_tokens) return n;
  n.query_len = last - first;
  std::int64_t least = n.query_len;
  if constexpr (kMasks) {
    const bool causal = a.causal.data != nullptr ? a.causal[req] : a.causal_by_default;
    least = !causal || a.q_begin.data != nullptr ? 0 : n.query_len;
  }
  if (n.seq_len < least || n.seq_len > 0x7FFFFFFF) return n;
  n.context_len = n.seq_len - n.query_len;
  if constexpr (kMasks) {
    const bool cached = n.cached_len == n.seq_len || a.key.data != nullptr;
    n.sound =
        n.cached_len >= n.context_len && n.cached_len >= 0 && n.cached_len <= n.seq_len && cached && masks_are_sound(a, req, n);
  } else {
    n.sound = n.cached_len >= n.context_len && n.cached_len <= n.seq_len && (n.cached_len == n.seq_len || a.key.data != nullptr);
  }
  return n;
}

/// Lengths of requests as the batch has them.
QUIRE_DEVICE CheckedLengths checked_lengths_of(const AttendArgs& a, std::int32_t req) {
  return a.has_masks || a.key_begin.data != nullptr ? checked_lengths<true>(a, req) : checked_lengths(a, req);
}

/// Rules about the batch as a whole: query_start_loc begins at 0, and ends at num_tokens or, of a padded batch, before.
QUIRE_DEVICE bool starts_are_sound(const AttendArgs& a) {
  return a.query_start_loc[0] == 0 && a.may_end_at(a.query_start_loc[a.num_reqs]);
}

}  // namespace quire::gpu
