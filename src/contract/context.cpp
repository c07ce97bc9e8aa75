// SPDX-License-Identifier: Apache-2.0
// Reading lengths and pages, once the rules vouch for them.
#include "contract/context.h"

#include <algorithm>

namespace quire::contract {

Lengths lengths_of(const Context& c, std::int64_t request) noexcept {
  const semantics::IndexView starts = semantics::index_view(c.batch.query_start_loc);
  Lengths lengths;
  lengths.first_row = starts[request];
  lengths.query_len = starts[request + 1] - lengths.first_row;
  lengths.seq_len = semantics::index_view(c.batch.seq_lens)[request];
  lengths.cached_len = c.batch.cached_lens ? semantics::index_view(c.batch.cached_lens)[request] : lengths.seq_len;
  lengths.sound = lengths.seq_len >= lengths.query_len && lengths.seq_len <= kMaxExtent &&
                  lengths.cached_len >= lengths.context_len() && lengths.cached_len <= lengths.seq_len;
  return lengths;
}

semantics::KeyRange visible_cached(const Context& c, const Lengths& lengths) noexcept {
  if (lengths.query_len == 0) return {0, 0};
  const std::int64_t window = c.options.sliding_window.value_or(0);
  const semantics::KeyRange keys = semantics::visible_range(lengths.context_len(), lengths.seq_len - 1, window);
  return {keys.begin, std::min(keys.end, lengths.cached_len)};
}

semantics::KeyRange visible_in_table(const Context& c, const Lengths& lengths) noexcept {
  const semantics::KeyRange keys = visible_cached(c, lengths);
  // Both factors are below 2^31 (Q-M08).
  return {keys.begin, std::min(keys.end, c.batch.block_table.shape[1] * c.sizes.page_size)};
}

bool is_index_array(const Tensor& t, std::int64_t size) noexcept {
  if (!readable(t) || t.rank != 1 || (t.dtype != DType::i32 && t.dtype != DType::i64)) return false;
  return !known(size) || t.shape[0] == size;
}

std::optional<std::int64_t> page_of(const Context& c, const semantics::IndexView& row, std::int64_t position) noexcept {
  const std::int64_t column = position / c.sizes.page_size;
  if (column >= c.batch.block_table.shape[1]) return std::nullopt;
  const std::int64_t page = row[column];
  if (page < 0 || page >= c.sizes.num_pages) return std::nullopt;
  return page;
}

std::int64_t request_id(const Context& c, std::int64_t request) noexcept {
  return is_index_array(c.batch.request_ids, c.sizes.num_reqs) ? semantics::index_view(c.batch.request_ids)[request] : request;
}

}  // namespace quire::contract
