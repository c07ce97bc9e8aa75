// SPDX-License-Identifier: Apache-2.0
// The requests of one rank's batch, from the lengths of the whole batch.
#include "batch/caught.h"
#include "quire/shards.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

/// Rows of requests, one after the other, that become segments.
class Segments {
 public:
  Segments(const ContextShard& shard, std::optional<std::int64_t> window) : shard_(shard), window_(window) {
    made_.query_start_loc.push_back(0);
  }

  void add_row(std::int64_t request, std::int64_t position) {
    const std::int64_t keys = shard_.local_length(position + 1);
    if (window_ || !continues(request, position)) {
      const bool causal = !window_ && shard_.holds(position);
      made_.query_start_loc.push_back(made_.query_start_loc.back());
      made_.seq_lens.push_back(keys);
      made_.request.push_back(request);
      made_.causal.push_back(causal ? 1 : 0);
      // q_begin - j < window holds from the first local key of the row's window on. A wider window than the row has keys hides
      // none, and counts as those.
      if (window_) {
        const std::int64_t window = std::min(*window_, position + 1);
        made_.q_begin.push_back(shard_.local_length(position + 1 - window) + window - 1);
      }
    }
    made_.seq_lens.back() = keys;
    ++made_.query_start_loc.back();
    last_ = position;
  }

  LocalLengths take() { return std::move(made_); }

 private:
  /// Whether the row belongs to the segment of the row before.
  bool continues(std::int64_t request, std::int64_t position) const {
    if (made_.request.empty() || made_.request.back() != request) return false;
    const bool held = shard_.holds(position);
    if (held != shard_.holds(last_)) return false;
    return !held || position / shard_.run() == last_ / shard_.run();
  }

  ContextShard shard_;
  std::optional<std::int64_t> window_;
  LocalLengths made_;
  std::int64_t last_ = -1;
};

LocalLengths of_contiguous(const ContextShard& shard, std::span<const std::int64_t> starts,
                           std::span<const std::int64_t> lengths) {
  LocalLengths made;
  made.query_start_loc.assign(starts.begin(), starts.end());
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    made.seq_lens.push_back(shard.local_length(lengths[r]));
    made.request.push_back(static_cast<std::int64_t>(r));
    made.causal.push_back(1);
    made.q_begin.push_back(lengths[r] - (starts[r + 1] - starts[r]));
    made.key_begin.push_back(std::min(shard.rank * shard.span, lengths[r]));  // a rank behind the request holds no key of it
  }
  return made;
}

/// Drops masks of batches whose requests are causal or have one row at the end of its keys, which sees all keys anyway: more
/// kernels take a batch without masks.
LocalLengths without_needless_masks(LocalLengths made) {
  if (!made.q_begin.empty()) return made;
  for (std::size_t s = 0; s < made.request.size(); ++s) {
    const std::int64_t rows = made.query_start_loc[s + 1] - made.query_start_loc[s];
    if ((made.causal[s] == 0 && rows != 1) || made.seq_lens[s] < rows) return made;
  }
  made.causal.clear();
  return made;
}

constexpr std::int64_t kMost = 2147483647;  // rows, and tokens of a request: as rules Q-M08 and Q-T07

Status check_lengths(std::span<const std::int64_t> starts, std::span<const std::int64_t> lengths,
                     std::optional<std::int64_t> sliding_window) {
  if (starts.size() != lengths.size() + 1 || starts[0] != 0)
    return {Code::invalid_argument,
            formatted("query_start_loc: {} entries, expected {} that begin with 0", starts.size(), lengths.size() + 1)};
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    if (starts[r + 1] < starts[r] || starts[r + 1] > kMost)
      return {Code::invalid_argument,
              formatted("query_start_loc[{}]: {}, expected at least {} and at most {}", r + 1, starts[r + 1], starts[r], kMost)};
    if (lengths[r] < starts[r + 1] - starts[r] || lengths[r] > kMost)
      return {Code::invalid_argument, formatted("seq_lens[{}]: {}, expected at least query_len {} and at most {}", r, lengths[r],
                                                starts[r + 1] - starts[r], kMost)};
  }
  if (sliding_window && *sliding_window < 1)
    return {Code::invalid_argument, formatted("sliding_window: {}, expected at least 1", *sliding_window)};
  return {};
}

}  // namespace

Result<LocalLengths> local_lengths(const ContextShard& shard, std::span<const std::int64_t> query_start_loc,
                                   std::span<const std::int64_t> seq_lens, std::optional<std::int64_t> sliding_window) try {
  if (const Findings findings = check_shard(shard); !findings.ok()) return findings.status();
  if (Status s = check_lengths(query_start_loc, seq_lens, sliding_window); !s.ok()) return s;
  if (shard.contiguous()) return of_contiguous(shard, query_start_loc, seq_lens);
  Segments segments(shard, sliding_window);
  for (std::size_t r = 0; r < seq_lens.size(); ++r) {
    const std::int64_t rows = query_start_loc[r + 1] - query_start_loc[r];
    for (std::int64_t i = 0; i < rows; ++i) segments.add_row(static_cast<std::int64_t>(r), seq_lens[r] - rows + i);
  }
  return without_needless_masks(segments.take());
} catch (...) {
  return batch::caught("local_lengths");
}

}  // namespace quire
