// SPDX-License-Identifier: Apache-2.0
// Reading lengths and pages, once the rules vouch for them.
#include "contract/context.h"

#include <algorithm>

namespace quire::contract {

namespace {

/// Rules Q-T19 to Q-T21 hold for a request with sound lengths, whose q_begin and key_begin are set.
bool positions_ok(const Lengths& n) noexcept {
  return n.key_begin >= 0 && n.key_begin <= kMaxExtent - n.seq_len && n.q_begin <= kMaxExtent - n.query_len &&
         (n.cached_len == n.seq_len || n.at_end());
}

semantics::SpanList spans_of(const Context& c, std::int64_t request) noexcept {
  const Tensor& t = c.batch.spans;
  if (!t) return {};
  const auto* base = static_cast<const std::uint8_t*>(t.data);
  return {base + request * t.stride[0] * itemsize(t.dtype), t.shape[1], t.stride[1], t.stride[2], t.dtype};
}

/// q_begin and key_begin, as they are where they are given.
void read_positions(const Context& c, std::int64_t request, Lengths& n) noexcept {
  if (c.batch.key_begin) n.key_begin = semantics::index_view(c.batch.key_begin)[request];
  const bool given = c.batch.q_begin.present();
  if (given) n.q_begin = semantics::index_view(c.batch.q_begin)[request];
  // key_begin and seq_len are added only if both are in range: a sum of unchecked values may overflow.
  const bool computable = n.sound && n.key_begin >= 0 && n.key_begin <= kMaxExtent;
  if (!given) n.q_begin = computable ? n.key_begin + n.context_len() : 0;
  n.sound = computable && (!given || (n.q_begin >= 0 && n.q_begin <= kMaxExtent)) && positions_ok(n);
}

}  // namespace

std::int64_t flag_value(const Tensor& flags, std::int64_t i) noexcept {
  return static_cast<const std::uint8_t*>(flags.data)[i * flags.stride[0]];
}

Lengths lengths_of(const Context& c, std::int64_t request) noexcept {
  const semantics::IndexView starts = semantics::index_view(c.batch.query_start_loc);
  Lengths lengths;
  lengths.request = request;
  lengths.first_row = starts[request];
  lengths.query_len = starts[request + 1] - lengths.first_row;
  lengths.seq_len = semantics::index_view(c.batch.seq_lens)[request];
  lengths.cached_len = c.batch.cached_lens ? semantics::index_view(c.batch.cached_lens)[request] : lengths.seq_len;
  lengths.causal = c.batch.causal ? semantics::flag_view(c.batch.causal)[request] : c.options.causal;
  const bool known_flag = !c.batch.causal || flag_value(c.batch.causal, request) <= 1;
  lengths.sound = lengths.seq_len >= (may_lack_keys(c, lengths) ? 0 : lengths.query_len) && lengths.seq_len <= kMaxExtent &&
                  lengths.cached_len >= lengths.least_cached() && lengths.cached_len <= lengths.seq_len && known_flag;
  read_positions(c, request, lengths);
  lengths.prefix_len =
      c.batch.prefix_lens ? semantics::index_view(c.batch.prefix_lens)[request] : c.options.prefix_len.value_or(0);
  if (c.batch.tree_lens) lengths.tree_len = semantics::index_view(c.batch.tree_lens)[request];
  lengths.sound = lengths.sound && mask_ok(c, lengths);
  return lengths;
}

semantics::VisiblePages visible_pages(const Context& c, const Lengths& lengths) noexcept {
  semantics::VisiblePages pages;
  pages.page_size = c.sizes.page_size;
  if (lengths.query_len == 0) return pages;
  semantics::Mask mask;
  mask.reach = semantics::reach_of(lengths.causal, c.options.sliding_window.value_or(0), c.options.window_right.value_or(-1));
  mask.num_keys = lengths.seq_len;
  mask.key_begin = lengths.key_begin;
  mask.set_chunk(c.options.attention_chunk.value_or(0));
  mask.spans = spans_of(c, lengths.request);
  mask.spans_beyond_window = c.options.spans_beyond_window;
  mask.set_regions(lengths.prefix_len, lengths.tree_len);
  const std::int64_t first = lengths.first_position();
  pages.keys = mask.seen_by(first, first + lengths.query_len - 1).below(lengths.cached_len);
  if (mask.has_tree()) pages.tree = tree_rows(c, lengths);
  return pages;
}

bool is_index_array(const Tensor& t, std::int64_t size) noexcept {
  if (!readable(t) || t.rank != 1 || (t.dtype != DType::i32 && t.dtype != DType::i64)) return false;
  return !known(size) || t.shape[0] == size;
}

bool is_flag_array(const Tensor& t, std::int64_t size) noexcept {
  return readable(t) && t.rank == 1 && t.dtype == DType::u8 && known(size) && t.shape[0] == size;
}

std::optional<std::int64_t> page_of(const Context& c, const semantics::IndexView& row, std::int64_t position) noexcept {
  const std::int64_t column = position / c.sizes.page_size;
  if (column >= c.batch.block_table.shape[1]) return std::nullopt;
  const std::int64_t page = row[column];
  if (page < 0 || page >= c.sizes.num_pages) return std::nullopt;
  return page;
}

bool stored_rows_readable(const Context& c, const Tensor& side) noexcept {
  using enum RuleId;
  const KVCache& cache = c.cache;
  for (const Tensor* scales : {&cache.k_scale, &cache.v_scale, &cache.k_block_scale, &cache.v_block_scale})
    if (scales->present() && !readable(*scales)) return false;
  return c.pages_sound && readable(side) && !c.report.broken({M04, M05, M07, M36, M51, M52, M53, M54, M55, R01, R02});
}

std::int64_t request_id(const Context& c, std::int64_t request) noexcept {
  return is_index_array(c.batch.request_ids, c.sizes.num_reqs) ? semantics::index_view(c.batch.request_ids)[request] : request;
}

}  // namespace quire::contract
