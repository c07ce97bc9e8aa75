// SPDX-License-Identifier: Apache-2.0
// Rules Q-T01 to Q-T12, Q-T16 and Q-T18 to Q-T21: what the index tensors say. O(num_reqs + pages in use); allocates only for
// findings and request ids.
#include <algorithm>
#include <string>

#include "contract/context.h"
#include "contract/flat_map.h"
#include "contract/index_scan.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;
using semantics::IndexView;

// --- query_start_loc ----------------------------------------------------------------------------------------------------

/// Little-endian int64 values below 2^31, read as int32: value, 0, value, 0, ...
bool looks_like_halves(const IndexView& view, std::int64_t size) {
  if (view.dtype != DType::i32 || size < 3) return false;
  bool any = false;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t value = view[i];
    if (i % 2 == 1 ? value != 0 : value < 0) return false;
    any = any || value != 0;
  }
  return any;
}

void add_halves_finding(Context& c, std::string_view tensor_name, const IndexView& view, std::int64_t size) {
  std::string values;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(size, 6); ++i) values += formatted("{}{}", i ? " " : "", view[i]);
  c.report.add(T05, tensor_name, {}, formatted("every second value is 0 ({}{})", values, size > 6 ? " ..." : ""),
               "indices of their own type", "looks like an int64 array read as int32: pass it as i64, or convert it");
}

void t01_first_is_zero(Context& c, const IndexView& starts) {
  if (starts[0] != 0) c.report.add(T01, "query_start_loc", {0}, formatted("{}", starts[0]), "0");
}

void t02_never_decreases(Context& c, const IndexView& starts) {
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    if (starts[r + 1] >= starts[r] || c.report.counted(T02)) continue;
    c.report.add(T02, "query_start_loc", {r + 1}, formatted("{}", starts[r + 1]),
                 formatted("at least query_start_loc[{}] = {}", r, starts[r]));
  }
}

void t04_last_is_num_tokens(Context& c, const IndexView& starts) {
  const std::int64_t last = starts[c.sizes.num_reqs];
  if (c.batch.padding != Padding::refused || last == c.sizes.num_tokens) return;
  c.report.add(T04, "query_start_loc", {c.sizes.num_reqs}, formatted("{}", last),
               formatted("num_tokens = {}", c.sizes.num_tokens),
               last < c.sizes.num_tokens ? "rows behind the last start are padding only if batch.padding says so" : "");
}

void t16_last_within_num_tokens(Context& c, const IndexView& starts) {
  const std::int64_t last = starts[c.sizes.num_reqs];
  if (c.batch.padding == Padding::refused || last <= c.sizes.num_tokens) return;
  c.report.add(T16, "query_start_loc", {c.sizes.num_reqs}, formatted("{}", last),
               formatted("at most num_tokens = {}", c.sizes.num_tokens));
}

bool starts_ok(const IndexView& starts, std::int64_t num_reqs, std::int64_t num_tokens, Padding padding) {
  const std::int64_t last = starts[num_reqs];
  if (starts[0] != 0 || (padding == Padding::refused ? last != num_tokens : last > num_tokens)) return false;
  for (std::int64_t r = 0; r < num_reqs; ++r)
    if (starts[r + 1] < starts[r]) return false;
  return true;
}

void apply_start_rules(Context& c) {
  const Tensor& tensor = c.batch.query_start_loc;
  if (!is_index_array(tensor, kUnknown) || !known(c.sizes.num_reqs) || !known(c.sizes.num_tokens)) return;
  const IndexView starts = semantics::index_view(tensor);
  c.starts_sound = starts_ok(starts, c.sizes.num_reqs, c.sizes.num_tokens, c.batch.padding);
  if (c.starts_sound) return;
  if (looks_like_halves(starts, tensor.shape[0])) return add_halves_finding(c, "query_start_loc", starts, tensor.shape[0]);
  t01_first_is_zero(c, starts);
  t02_never_decreases(c, starts);
  t04_last_is_num_tokens(c, starts);
  t16_last_within_num_tokens(c, starts);
}

// --- lengths ------------------------------------------------------------------------------------------------------------

std::int64_t least_seq_len(const Context& c, const Lengths& n) { return may_lack_keys(c, n) ? 0 : n.query_len; }

void t06_seq_covers_query(Context& c, std::int64_t r, const Lengths& n) {
  if (n.seq_len >= least_seq_len(c, n) || c.report.counted(T06)) return;
  c.report.add(T06, "seq_lens", {r}, formatted("{}", n.seq_len),
               may_lack_keys(c, n) ? "at least 0" : formatted("at least query_len = {}", n.query_len),
               n.seq_len >= 0 ? "seq_len counts the query rows too" : "");
}

void t07_seq_len_limit(Context& c, std::int64_t r, const Lengths& n) {
  if (n.seq_len <= kMaxExtent || c.report.counted(T07)) return;
  c.report.add(T07, "seq_lens", {r}, formatted("{}", n.seq_len), formatted("at most {}", kMaxExtent));
}

void t08_cached_range(Context& c, std::int64_t r, const Lengths& n) {
  // Needs a sound seq_len, because context_len is derived from it.
  if (n.seq_len < least_seq_len(c, n) || n.seq_len > kMaxExtent) return;
  if ((n.cached_len >= n.least_cached() && n.cached_len <= n.seq_len) || c.report.counted(T08)) return;
  c.report.add(T08, "cached_lens", {r}, formatted("{}", n.cached_len),
               formatted("in [{}, {}] = [context_len, seq_len]", n.least_cached(), n.seq_len));
}

void t18_flag(Context& c, std::int64_t r) {
  if (!c.batch.causal.present() || flag_value(c.batch.causal, r) <= 1 || c.report.counted(T18)) return;
  c.report.add(T18, "causal", {r}, formatted("{}", flag_value(c.batch.causal, r)), "0 or 1");
}

/// Position `begin` of the first of `count` tokens; the last is below 2^31 - 1.
void position(Context& c, RuleId rule, std::string_view tensor, std::int64_t r, std::int64_t begin, std::int64_t count,
              std::string_view counted) {
  if (count < 0 || count > kMaxExtent || (begin >= 0 && begin <= kMaxExtent - count) || c.report.counted(rule)) return;
  c.report.add(rule, tensor, {r}, formatted("{}", begin), formatted("in [0, {}]", kMaxExtent - count),
               formatted("{} = {}", counted, count));
}

void t21_new_rows_at_end(Context& c, std::int64_t r, const Lengths& n) {
  const bool readable_lengths = n.seq_len >= 0 && n.seq_len <= kMaxExtent && n.cached_len >= n.least_cached();
  if (!readable_lengths || n.cached_len >= n.seq_len || c.report.broken({T19, T20}) || n.at_end() || c.report.counted(T21))
    return;
  if (n.seq_len < n.query_len)
    return c.report.add(T21, "cached_lens", {r}, formatted("{}", n.cached_len),
                        formatted("seq_len = {}, which is less than query_len = {}", n.seq_len, n.query_len),
                        "rows of key would stand for keys that are not there");
  c.report.add(T21, "q_begin", {r}, formatted("{}", n.q_begin),
               formatted("key_begin + context_len = {}, or cached_len = seq_len", n.key_begin + n.context_len()),
               "keys from cached_len on are rows of key, at the end of the sequence");
}

void t09_new_rows_given(Context& c, std::int64_t r, const Lengths& n) {
  if (!n.sound || n.cached_len == n.seq_len || c.report.broken(M24) || c.batch.key.present() || c.report.counted(T09)) return;
  c.report.add(T09, "cached_lens", {r}, formatted("{}", n.cached_len), formatted("seq_len = {}, or key and value", n.seq_len),
               "tokens from cached_len on are in neither the cache nor the batch");
}

/// Whether the array looks like int64 read as int32 and a request is broken because of it.
bool halves_explain(Context& c, const Tensor& t) {
  if (!t.present() || !looks_like_halves(semantics::index_view(t), c.sizes.num_reqs)) return false;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r)
    if (!lengths_of(c, r).sound) return true;
  return false;
}

void apply_length_rules(Context& c) {
  if (!c.starts_sound || !is_index_array(c.batch.seq_lens, c.sizes.num_reqs)) return;
  for (const Tensor* t : {&c.batch.cached_lens, &c.batch.q_begin, &c.batch.key_begin})
    if (t->present() && !is_index_array(*t, c.sizes.num_reqs)) return;
  if (c.batch.causal.present() && !is_flag_array(c.batch.causal, c.sizes.num_reqs)) return;
  if (!masks_readable(c)) return;
  for (const NamedTensor& t : {NamedTensor{"seq_lens", &c.batch.seq_lens}, NamedTensor{"cached_lens", &c.batch.cached_lens}}) {
    if (!halves_explain(c, *t.tensor)) continue;
    return add_halves_finding(c, t.name, semantics::index_view(*t.tensor), c.sizes.num_reqs);
  }
  c.lengths_sound = true;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const Lengths lengths = lengths_of(c, r);
    if (lengths.sound && lengths.cached_len == lengths.seq_len) continue;
    t06_seq_covers_query(c, r, lengths);
    t07_seq_len_limit(c, r, lengths);
    t08_cached_range(c, r, lengths);
    t18_flag(c, r);
    if (c.batch.q_begin.present()) position(c, T19, "q_begin", r, lengths.q_begin, lengths.query_len, "query_len");
    if (c.batch.key_begin.present()) position(c, T20, "key_begin", r, lengths.key_begin, lengths.seq_len, "seq_len");
    t21_new_rows_at_end(c, r, lengths);
    apply_mask_value_rules(c, lengths);
    t09_new_rows_given(c, r, lengths);
  }
}

// --- block_table --------------------------------------------------------------------------------------------------------

/// Checks columns [first, last) of a request, some of which may have pages that no row sees.
void t03_page_ids(Context& c, std::int64_t r, const semantics::VisiblePages& pages, std::int64_t first, std::int64_t last) {
  const std::int64_t num_pages = c.sizes.num_pages;
  const IndexView row = semantics::index_row(c.batch.block_table, r);
  if (all_within(row, first, last, num_pages)) return;
  for (std::int64_t column = first; column < last; ++column) {
    const std::int64_t page = row[column];
    if ((page >= 0 && page < num_pages) || !pages.has(column) || c.report.counted(T03)) continue;
    c.report.add(T03, "block_table", {r, column}, formatted("page {}", page), formatted("in [0, {})", num_pages),
                 table_holds_slots(c, r) ? kTableHoldsSlots : "");
  }
}

void t10_wide_enough(Context& c, std::int64_t r, std::int64_t cached_len, std::int64_t needed) {
  const std::int64_t width = c.batch.block_table.shape[1];
  if (needed <= width || c.report.counted(T10)) return;
  c.report.add(T10, "block_table", {r}, formatted("{} pages wide", width),
               formatted("at least {} for {} cached tokens in pages of {}", needed, cached_len, c.sizes.page_size));
}

/// Whether every odd column is 0 and every even column is not, in every request with at least four columns in use.
bool table_looks_like_halves(const Context& c) {
  if (c.batch.block_table.dtype != DType::i32) return false;
  bool any = false;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const Lengths lengths = lengths_of(c, r);
    if (!lengths.sound) continue;
    const semantics::VisiblePages pages = visible_pages(c, lengths);
    const auto [first, end] = pages.columns(pages.keys.hull());
    const std::int64_t last = std::min(end, c.batch.block_table.shape[1]);
    const IndexView row = semantics::index_row(c.batch.block_table, r);
    if (last - first < 4) continue;
    for (std::int64_t column = first; column < last; ++column)
      if ((row[column] == 0) != (column % 2 == 1)) return false;
    any = true;
  }
  return any;
}

void apply_page_rules(Context& c) {
  const Tensor& table = c.batch.block_table;
  if (!c.lengths_sound || !known(c.sizes.num_pages) || c.report.broken({M30, M32}) || !readable(table) || table.rank != 2) return;
  if (table.dtype != DType::i32 && table.dtype != DType::i64) return;
  c.pages_sound = true;
  if (table_looks_like_halves(c)) {  // a guess: other findings of the table are told as well
    add_halves_finding(c, "block_table", semantics::index_row(table, 0), table.shape[1]);
    c.pages_sound = false;
  }
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const Lengths lengths = lengths_of(c, r);
    if (!lengths.sound) continue;
    const semantics::VisiblePages pages = visible_pages(c, lengths);
    const std::int64_t width = table.shape[1], needed = pages.needed(width);
    t10_wide_enough(c, r, lengths.cached_len, needed);
    std::int64_t done = 0;  // columns judged so far: two ranges of keys may share a page
    for (const semantics::KeyRange& range : {pages.keys.prefix, pages.keys.middle, pages.keys.tree}) {
      const auto [first, end] = pages.columns(range);
      t03_page_ids(c, r, pages, std::max(first, done), std::min(end, width));
      done = std::max(done, end);
    }
  }
}

// --- request_ids --------------------------------------------------------------------------------------------------------

void t11_ids_not_negative(Context& c, const IndexView& ids) {
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r)
    if (ids[r] < 0 && !c.report.counted(T11)) c.report.add(T11, "request_ids", {r}, formatted("{}", ids[r]), ">= 0");
}

void t12_ids_distinct(Context& c, const IndexView& ids) {
  if (ids.stride == 0 && c.sizes.num_reqs > 1)  // needs no table sized by a claimed count, like Q-S02
    return c.report.add(T12, "request_ids", {1}, formatted("{}", ids[1]), "an id of its own, not that of request 0");
  FlatMap<std::int64_t> seen(c.sizes.num_reqs);
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const std::int64_t* first = seen.insert(ids[r], r);
    if (first == nullptr || c.report.counted(T12)) continue;
    c.report.add(T12, "request_ids", {r}, formatted("{}", ids[r]), formatted("an id of its own, not that of request {}", *first));
  }
}

void apply_request_id_rules(Context& c) {
  if (!known(c.sizes.num_reqs) || !is_index_array(c.batch.request_ids, c.sizes.num_reqs)) return;
  const IndexView ids = semantics::index_view(c.batch.request_ids);
  t11_ids_not_negative(c, ids);
  t12_ids_distinct(c, ids);
}

}  // namespace

void apply_table_rules(Context& c) {
  apply_start_rules(c);
  apply_length_rules(c);
  apply_page_rules(c);
  apply_tree_rules(c);
  apply_request_id_rules(c);
}

}  // namespace quire::contract
