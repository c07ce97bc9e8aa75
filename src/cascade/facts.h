// SPDX-License-Identifier: Apache-2.0
// Facts of a planned batch: which lengths and tables it had, and which rows are merged.
#pragma once

#include "cascade/levels.h"
#include "quire/cascade.hpp"
#include "semantics/page_walk.h"

namespace quire::cascade {

/// Pages of the batch that hold cached keys; the rest of the table is never read. Tables must be sound, and in host memory.
inline HostTable table_of(const Batch& batch, const Problem& problem) {
  const Tensor& t = batch.block_table;
  HostTable table;
  table.columns = t.shape[1];
  table.pages.assign(static_cast<std::size_t>(t.shape[0] * t.shape[1]), -1);
  for (std::size_t r = 0; r < problem.reqs.size(); ++r) {
    const std::int64_t held = semantics::columns_held(problem.reqs[r].cached_len, problem.page_size, table.columns);
    const semantics::IndexView row = semantics::index_row(t, static_cast<std::int64_t>(r));
    for (std::int64_t j = 0; j < held; ++j)
      table.pages[r * static_cast<std::size_t>(table.columns) + static_cast<std::size_t>(j)] = static_cast<std::int32_t>(row[j]);
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
