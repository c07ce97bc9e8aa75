// SPDX-License-Identifier: Apache-2.0
// Facts of a planned batch: which lengths and tables it had, and which rows are merged.
#pragma once

#include "cascade/levels.h"
#include "quire/cascade.hpp"
#include "semantics/ceil_div.h"

namespace quire::cascade {

inline std::int64_t index_at(const Tensor& t, std::int64_t at) noexcept {
  return t.dtype == DType::i64 ? static_cast<const std::int64_t*>(t.data)[at] : static_cast<const std::int32_t*>(t.data)[at];
}

/// Pages of the batch that hold cached keys; the rest is never read. Sound tables in host memory.
inline HostTable table_of(const Batch& batch, const Problem& problem) {
  const Tensor& t = batch.block_table;
  HostTable table;
  table.columns = t.shape[1];
  table.pages.assign(static_cast<std::size_t>(t.shape[0] * t.shape[1]), -1);
  for (std::size_t r = 0; r < problem.reqs.size(); ++r) {
    const std::int64_t pages = semantics::ceil_div(problem.reqs[r].cached_len, problem.page_size);
    for (std::int64_t j = 0; j < pages; ++j)
      table.pages[r * static_cast<std::size_t>(table.columns) + static_cast<std::size_t>(j)] =
          static_cast<std::int32_t>(index_at(t, static_cast<std::int64_t>(r) * t.stride[0] + j * t.stride[1]));
  }
  return table;
}

/// FNV-1a of lengths, masks and pages.
inline std::uint64_t digest_of(const Problem& problem, const HostTable& table) noexcept {
  std::uint64_t hash = 14695981039346656037U;
  const auto add = [&hash](std::int64_t value) { hash = (hash ^ static_cast<std::uint64_t>(value)) * 1099511628211U; };
  for (const Request& r : problem.reqs)
    for (const std::int64_t value : {r.query_len, r.context_len, r.cached_len, std::int64_t{r.causal}, r.shift, r.key_begin})
      add(value);
  for (const std::int32_t page : table.pages) add(page);
  return hash;
}

/// Rows of partial results: those of requests, and padding rows where they become zero.
inline std::int64_t merged_rows(const Cascade& cascade, const Batch& batch) noexcept {
  return batch.padding == Padding::zero ? batch.query.shape[0] : cascade.problem.num_tokens();
}

}  // namespace quire::cascade
