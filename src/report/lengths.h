// SPDX-License-Identifier: Apache-2.0
// Lengths of a batch's requests for pictures, read once from its index tensors (by their dtype).
//
// Reports are also made of batches that break the contract, so no function here trusts a value: a length may be negative, owners
// of rows are searched, not computed, and values are clamped so that sums of them stay far from overflow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "quire/batch.hpp"
#include "semantics/ceil_div.h"
#include "semantics/index_tensor.h"

namespace quire::report {

inline constexpr std::int64_t kLongest = std::int64_t{1} << 40;

inline std::int64_t index_at(const Tensor& t, std::int64_t i) {
  return std::clamp(semantics::index_at(t, i), -kLongest, kLongest);
}

/// An index tensor of this rank that may be read here.
inline bool is_index(const Tensor& t, int rank) {
  return t.rank == rank && (t.dtype == DType::i32 || t.dtype == DType::i64) && t.memory == Memory::cpu;
}
/// The lengths of a batch may be read: the index tensors are there, and as long as they must be.
inline bool has_lengths(const Batch& batch) {
  return is_index(batch.query_start_loc, 1) && is_index(batch.seq_lens, 1) &&
         batch.query_start_loc.shape[0] == batch.seq_lens.shape[0] + 1;
}

struct Lengths {
  std::vector<std::int64_t> query_start_loc, seq_lens, cached_lens, first_positions;

  /// has_lengths(batch) must hold.
  explicit Lengths(const Batch& batch) {
    for (std::int64_t i = 0; i < batch.query_start_loc.shape[0]; ++i)
      query_start_loc.push_back(index_at(batch.query_start_loc, i));
    for (std::int64_t r = 0; r < batch.seq_lens.shape[0]; ++r) seq_lens.push_back(index_at(batch.seq_lens, r));
    const bool explicit_lens = is_index(batch.cached_lens, 1) && batch.cached_lens.shape[0] == num_reqs();
    for (std::int64_t r = 0; r < num_reqs(); ++r)
      cached_lens.push_back(explicit_lens ? index_at(batch.cached_lens, r) : seq_lens[static_cast<std::size_t>(r)]);
    const auto given = [&](const Tensor& t) { return is_index(t, 1) && t.shape[0] == num_reqs(); };
    for (std::int64_t r = 0; r < num_reqs(); ++r) {
      const std::int64_t begin = given(batch.key_begin) ? index_at(batch.key_begin, r) : 0;
      first_positions.push_back(given(batch.q_begin) ? index_at(batch.q_begin, r) - begin : context_len(r));
    }
  }

  std::int64_t num_reqs() const { return static_cast<std::int64_t>(seq_lens.size()); }
  std::int64_t first_token(std::int64_t r) const { return query_start_loc[static_cast<std::size_t>(r)]; }
  std::int64_t query_len(std::int64_t r) const { return first_token(r + 1) - first_token(r); }
  std::int64_t seq_len(std::int64_t r) const { return seq_lens[static_cast<std::size_t>(r)]; }
  std::int64_t context_len(std::int64_t r) const { return seq_len(r) - query_len(r); }
  /// Place of row 0, counted from the request's first key.
  std::int64_t first_position(std::int64_t r) const { return first_positions[static_cast<std::size_t>(r)]; }
  std::int64_t cached_len(std::int64_t r) const { return cached_lens[static_cast<std::size_t>(r)]; }

  /// The request that owns an output row, or -1.
  std::int64_t req_of(std::int64_t token) const {
    const auto next = std::upper_bound(query_start_loc.begin(), query_start_loc.end(), token);
    const auto r = static_cast<std::int64_t>(next - query_start_loc.begin()) - 1;
    return r >= 0 && r < num_reqs() ? r : -1;
  }
};

/// Neighbours that share one cell of a picture, so that no more than `most` cells are drawn.
inline std::int64_t bin_size(std::int64_t count, std::int64_t most) {
  return std::max<std::int64_t>(1, semantics::ceil_div(count, most));
}

}  // namespace quire::report
