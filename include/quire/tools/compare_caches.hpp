// SPDX-License-Identifier: Apache-2.0
// Two caches compared row by row: what became of each position of each KV head, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/batch.hpp"
#include "quire/cache.hpp"
#include "quire/status.hpp"

namespace quire {

/// A cache in host memory, with the tables that say where each request's positions stand in it.
struct CacheContents {
  KVCache cache;
  Tensor block_table;               ///< [num_reqs, max_pages_per_req] i32 or i64
  Tensor lengths;                   ///< [num_reqs] i32 or i64: positions of each request that the cache holds
  Tensor request_ids;               ///< optional [num_reqs]; requests of two caches are matched by their ids; absent = 0, 1, ...
  std::vector<std::int64_t> heads;  ///< the model's number of each KV head, on a rank that has some of them; empty = 0, 1, ...
};
/// The contents of a batch's cache: lengths are cached_lens, or seq_lens in a batch without cached_lens.
CacheContents contents_of(const Batch& batch, const KVCache& cache);

/// The fate, in cache B, of a row of cache A. A row is K or V of one position and KV head.
enum class RowFate : std::int32_t {
  identical,  ///< bytes are the same in the same place, or after append()'s rounding where the types differ
  moved,      ///< row lies in another place that B's block table lists: position, head, request, or the other of K and V
  unlisted,   ///< row lies in memory of B's cache that no block table entry lists
  reordered,  ///< row lies where another order of tokens and heads in a page puts it
  changed,    ///< row is nowhere in B; another row is in its place
  no_place,   ///< nowhere in B, which has no such request, position, head or page
  ambiguous,  ///< row stands at several places, as rows of zeros do: its way is unknown
};
std::string_view name(RowFate fate) noexcept;  ///< "identical", ...

/// A run of positions [first, last] and heads [first_head, last_head] (the model's numbers) that fared alike.
struct CachePart {
  std::vector<std::int64_t> requests;  ///< ids of requests that fared alike
  std::int64_t first_head = 0, last_head = 0;
  bool k = false, v = false;
  std::int64_t first = 0, last = 0;  ///< last = -1: to the end of each request
  RowFate fate = RowFate::identical;
  std::string text;  ///< "now at positions 16 to 31"
  std::int64_t rows = 0;
};

struct CacheComparison {
  bool same = false;  ///< every row of A stands in B, and means the same number
  std::string a, b;   ///< "2 requests, 163 positions, 4 KV heads of 64, bf16, nhd, 14 pages of 16"
  std::int64_t rows = 0;
  std::vector<std::int64_t> counts;  ///< rows of each fate, in the order of RowFate
  std::vector<std::string> summary;  ///< the shortest words for what happened: "whole pages stand in another order"
  std::vector<CachePart> parts;      ///< rows of A, in order of requests
};

/// Looks up every row of A's requests, K and V, among the rows of B. Bytes are compared, block scales and scales of tokens
/// included; where types or scales of K or V differ, A is first rounded as append() rounds. Rows that are nowhere are compared
/// with what stands in their place, by value. Positions that A's table has no page for are left out; so are heads and requests
/// that B's lists name and A's do not.
///
/// Two unlike rows are taken for the same with a probability of 2^-64. The call needs 16 bytes of memory for each row of B.
/// Errors: contract_violation for a broken cache; invalid_argument for tables or lengths that do not fit their cache, and for
/// rows of unlike sizes.
Result<CacheComparison> compare_caches(const CacheContents& a, const CacheContents& b);

/// A text of at most 24 parts, in lines of at most `columns` characters.
std::string to_string(const CacheComparison& comparison, std::size_t columns = 80);
/// One JSON object in one line, as docs/reference/schemas/compare_caches.json describes it.
std::string to_json(const CacheComparison& comparison);

}  // namespace quire
