// SPDX-License-Identifier: Apache-2.0
// Attention whose heads or contexts are spread over ranks: shards as pure data, their rules, and the batch of one rank.
//
// A context shard owns positions by one function of (rank, world, interleave). Positions stay global; a rank counts the positions
// that it holds, in order, by a local index:
//
//   owner(p)           = p / interleave mod world                                  interleaved, the order of vLLM's DCP
//                      = min(p / span, world - 1)                                  contiguous (span > 0)
//   local_index(p)     = positions below p that owner(p) holds
//   local_length(n)    = positions below n that this rank holds
//   global_position(j) = the position that has local index j on this rank
//
// Each rank attends to its own keys with lse, in f32; the program exchanges the partial results by whatever connects its ranks
// (examples/ranks has MPI and NCCL); merge_many() (attention.hpp) combines them in rank order, so every rank has the same bits in
// any order of arrival.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/contract.hpp"
#include "quire/status.hpp"

namespace quire {

/// Positions of every request that this rank holds. Valid shards keep rules Q-D01 and Q-D02. All functions need a valid shard and
/// positions, lengths and indices >= 0.
struct ContextShard {
  std::int32_t rank = 0;
  std::int32_t world = 1;       ///< ranks that hold one context together
  std::int64_t interleave = 1;  ///< length of a run of tokens on one rank, 1 to 2^31 - 1; a multiple of the page size shards
                                ///< whole pages
  std::int64_t span = 0;        ///< > 0: contiguous; rank k holds [k * span, (k + 1) * span), the last rank also what follows; at
                                ///< most 2^31 - 1

  constexpr bool contiguous() const noexcept { return span > 0; }
  /// Number of tokens in one run.
  constexpr std::int64_t run() const noexcept { return contiguous() ? span : interleave; }

  constexpr std::int32_t owner(std::int64_t position) const noexcept {
    const std::int64_t turn = position / run();
    return static_cast<std::int32_t>(contiguous() ? std::min<std::int64_t>(turn, world - 1) : turn % world);
  }
  constexpr bool holds(std::int64_t position) const noexcept { return owner(position) == rank; }

  /// Local index of a position on the rank that holds the position.
  constexpr std::int64_t local_index(std::int64_t position) const noexcept {
    if (contiguous()) return position - owner(position) * span;
    return position / (interleave * world) * interleave + position % interleave;
  }

  constexpr std::int64_t local_length(std::int64_t length) const noexcept {
    if (contiguous()) {
      const std::int64_t behind = std::max<std::int64_t>(length - rank * span, 0);
      return rank + 1 < world ? std::min(behind, span) : behind;
    }
    const std::int64_t round = interleave * world;
    return length / round * interleave + std::clamp<std::int64_t>(length % round - rank * interleave, 0, interleave);
  }

  constexpr std::int64_t global_position(std::int64_t local) const noexcept {
    if (contiguous()) return rank * span + local;
    return (local / interleave * world + rank) * interleave + local % interleave;
  }

  friend constexpr bool operator==(const ContextShard&, const ContextShard&) noexcept = default;
};

/// Heads that this rank computes (tensor parallel). world divides num_kv_heads, or is a multiple of it: then several ranks hold
/// the same KV head and share its query heads (Q-D03).
struct HeadShard {
  std::int32_t rank = 0;
  std::int32_t world = 1;
  std::int64_t num_q_heads = 1;
  std::int64_t num_kv_heads = 1;

  constexpr std::int64_t q_heads() const noexcept { return num_q_heads / world; }
  constexpr std::int64_t first_q_head() const noexcept { return rank * q_heads(); }
  constexpr std::int64_t kv_heads() const noexcept { return std::max<std::int64_t>(num_kv_heads / world, 1); }
  constexpr std::int64_t first_kv_head() const noexcept { return first_q_head() / (num_q_heads / num_kv_heads); }

  friend constexpr bool operator==(const HeadShard&, const HeadShard&) noexcept = default;
};

/// Applies rules Q-D01 and Q-D02, and Q-D04 if a page size is given (0 = not given).
Findings check_shard(const ContextShard& shard, std::int64_t page_size = 0);
/// Applies rules Q-D01 and Q-D03.
Findings check_shard(const HeadShard& shard);
/// Applies rule Q-D06: slot_mapping[t] >= 0 exactly where the rank holds positions[t]. Both spans have one size.
Findings check_shard_slots(const ContextShard& shard, std::span<const std::int64_t> slot_mapping,
                           std::span<const std::int64_t> positions);
/// Applies rules Q-L01 to Q-L05 to a rank's cache: every key that the rows of the batch see and this rank holds was written for
/// its position in the whole request. batch: lengths of the whole requests, block_table of this rank's cache. ledger: of this
/// cache; positions of its writes are those of the whole requests. Call it after this step's append.
Findings check_shard_ledger(const ContextShard& shard, const Batch& batch, const KVCache& cache, const Options& options,
                            const SlotLedger& ledger);
/// Applies rule Q-D05: all ranks state the same facts about a step. facts[k * names.size() + i] is fact i of rank k; every rank
/// must state the facts of rank 0, and as many.
Findings check_ranks(std::span<const std::string> names, std::span<const std::int64_t> facts);
/// Applies rule Q-D07: options of prompts whose rows and keys are spread over ranks. ring: keys go from rank to rank, so a row
/// sees all keys of another rank's block or none.
Findings check_prompts(const Options& options, bool ring);

/// Slots of tokens in this rank's cache: slot = page * page_size + offset of the token's local index, -1 where another rank holds
/// the position. requests[t] is the token's row of `local_table` [*, pages_per_request], which holds pages of this rank's cache.
Result<std::vector<std::int64_t>> local_slots(const ContextShard& shard, std::span<const std::int64_t> positions,
                                              std::span<const std::int64_t> requests, std::span<const std::int64_t> local_table,
                                              std::int64_t pages_per_request, std::int64_t page_size);

/// Pages of a global block table [*, pages_per_request] that this rank holds, in order; entries past the last page of a request
/// are -1. Whole pages only (Q-D04): interleave or span is a multiple of page_size. lengths: tokens of each request.
struct LocalTable {
  std::vector<std::int64_t> pages;
  std::int64_t pages_per_request = 0;
};
Result<LocalTable> local_table(const ContextShard& shard, std::span<const std::int64_t> table, std::int64_t pages_per_request,
                               std::span<const std::int64_t> lengths, std::int64_t page_size);

/// Lengths of one rank's batch: the rows of the whole batch, over the keys that the rank holds. Requests are causal.
///
/// A contiguous shard keeps the requests; key_begin and q_begin say where keys and rows stand. In an interleaved shard the keys
/// that a row sees are the first local_length(q_pos + 1) ones, and the rows of a request fall into segments, each of which
/// becomes a request of its own with the same pages:
///
///     rows while another rank's run passes    all see the same keys: not causal
///     rows in a run of this rank              each sees one key more than the row before: causal, at the end of its keys
///     with a sliding window                   every row alone: not causal, q_begin placed so that the window ends at its last
///     key
struct LocalLengths {
  std::vector<std::int64_t> query_start_loc;  ///< [segments + 1]
  std::vector<std::int64_t> seq_lens;         ///< [segments] keys on this rank
  std::vector<std::int64_t> request;          ///< [segments] index of the segment's request in the whole batch
  std::vector<std::uint8_t> causal;           ///< [segments], or empty = absent: every row sees what a causal one would
  std::vector<std::int64_t> q_begin;          ///< [segments], or empty = absent
  std::vector<std::int64_t> key_begin;        ///< [segments], or empty = absent
};
/// Needs query_start_loc [num_reqs + 1] and seq_lens [num_reqs] of the whole batch, in tokens. invalid_argument names an invalid
/// entry.
Result<LocalLengths> local_lengths(const ContextShard& shard, std::span<const std::int64_t> query_start_loc,
                                   std::span<const std::int64_t> seq_lens, std::optional<std::int64_t> sliding_window = {});

}  // namespace quire
