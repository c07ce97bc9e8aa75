// SPDX-License-Identifier: Apache-2.0
// Rules Q-V01 to Q-V10: chunks, spans, prefixes and trees.
#include <string>
#include <string_view>

#include "contract/context.h"
#include "text/formatted.h"

namespace quire::contract {
namespace {

using enum RuleId;

// --- options and shapes ----------------------------------------------------------------------------------------------------

void v01_chunk(Context& c) {
  const auto& chunk = c.options.attention_chunk;
  if (!chunk || *chunk >= 1) return;
  c.report.add(V01, "attention_chunk", {}, formatted("{}", *chunk), ">= 1; leave it out for no chunks");
}

void v02_prefix(Context& c) {
  const auto& prefix = c.options.prefix_len;
  if (!prefix || *prefix >= 0) return;
  c.report.add(V02, "prefix_len", {}, formatted("{}", *prefix), ">= 0; leave it out for no prefix");
}

void v03_one_prefix(Context& c) {
  if (!c.options.prefix_len || !c.batch.prefix_lens.present()) return;
  c.report.add(V03, "prefix_len", {}, "options.prefix_len beside batch.prefix_lens", "one of the two");
}

bool spans_shape_ok(const Context& c) {
  const Tensor& t = c.batch.spans;
  return t.rank == 3 && t.shape[2] == 2 && (!known(c.sizes.num_reqs) || t.shape[0] == c.sizes.num_reqs);
}

void v04_spans_shape(Context& c) {
  if (!well_formed(c.batch.spans) || spans_shape_ok(c)) return;
  const std::string reqs = known(c.sizes.num_reqs) ? formatted("{}", c.sizes.num_reqs) : "num_reqs";
  c.report.add(V04, "spans", {}, "shape " + shape_text(c.batch.spans), formatted("[{}, max_spans, 2]", reqs));
}

bool tree_shape_ok(const Context& c) {
  const Tensor& t = c.batch.tree_mask;
  return t.dtype == DType::u8 && t.rank == 2 && t.shape[1] >= 1 && t.shape[1] <= semantics::kMaxTreeKeys / 8 &&
         (!known(c.sizes.num_tokens) || t.shape[0] == c.sizes.num_tokens);
}

void v05_tree_shape(Context& c) {
  const Tensor &mask = c.batch.tree_mask, &lens = c.batch.tree_lens;
  if (mask.present() != lens.present())
    return c.report.add(V05, mask.present() ? "tree_lens" : "tree_mask", {}, "absent",
                        formatted("given beside {}", mask.present() ? "tree_mask" : "tree_lens"));
  if (!well_formed(mask) || tree_shape_ok(c)) return;
  const std::string tokens = known(c.sizes.num_tokens) ? formatted("{}", c.sizes.num_tokens) : "num_tokens";
  c.report.add(V05, "tree_mask", {}, to_string(mask), formatted("u8 [{}, 1 to {}]", tokens, semantics::kMaxTreeKeys / 8));
}

// --- values ------------------------------------------------------------------------------------------------------------------

constexpr std::string_view kSpanForm = "0 <= begin <= end <= 2^31 - 1, behind the span before, and empty after an empty one";

/// The first span of a request that breaks Q-V06; the number of spans if none does.
std::int64_t first_wrong_span(const Context& c, std::int64_t r) {
  if (!c.batch.spans) return 0;
  std::int64_t last_end = 0;
  bool ended = false;
  for (std::int64_t i = 0; i < c.batch.spans.shape[1]; ++i) {
    const Span span = span_of(c.batch, r, i);
    const bool empty = span.begin == span.end;
    const bool in_range = span.begin >= 0 && span.begin <= span.end && span.end <= kMaxExtent;
    if (!in_range || (!empty && (ended || span.begin < last_end))) return i;
    ended = ended || empty;
    if (!empty) last_end = span.end;
  }
  return c.batch.spans.shape[1];
}

void v06_spans(Context& c, const Lengths& n) {
  if (!c.batch.spans) return;
  const std::int64_t i = first_wrong_span(c, n.request);
  if (i == c.batch.spans.shape[1] || c.report.counted(V06)) return;
  const Span span = span_of(c.batch, n.request, i);
  c.report.add(V06, "spans", {n.request, i}, formatted("[{}, {})", span.begin, span.end), std::string(kSpanForm));
}

void v07_prefix(Context& c, const Lengths& n) {
  if (!c.batch.prefix_lens || n.prefix_len >= 0 || c.report.counted(V07)) return;
  c.report.add(V07, "prefix_lens", {n.request}, formatted("{}", n.prefix_len), ">= 0");
}

/// Most keys of a tree, as far as the mask's width allows.
std::int64_t most_tree_keys(const Context& c) { return c.batch.tree_mask.present() ? 8 * c.batch.tree_mask.shape[1] : 0; }

bool tree_len_ok(const Context& c, const Lengths& n) {
  return n.tree_len >= 0 && n.tree_len <= n.seq_len && n.tree_len <= most_tree_keys(c);
}

void v08_tree_len(Context& c, const Lengths& n) {
  if (tree_len_ok(c, n) || n.seq_len < 0 || c.report.counted(V08)) return;
  c.report.add(V08, "tree_lens", {n.request}, formatted("{}", n.tree_len),
               formatted("in [0, {}]: the bits of a row, and at most seq_len = {}", most_tree_keys(c), n.seq_len));
}

/// Bits of the row `row` of a request.
semantics::TreeBits bits_of(const Context& c, const Lengths& n, std::int64_t row) { return tree_rows(c, n).of_row(row); }

/// Bit of the key at which a row stands, if the rows stand at the end of the keys; it may be outside of the tree.
std::int64_t own_bit(const Lengths& n, std::int64_t row) { return n.first_position() + row - (n.seq_len - n.tree_len); }

void v09_own_bit(Context& c, const Lengths& n, std::int64_t row) {
  const std::int64_t own = own_bit(n, row);
  if (own < 0 || bits_of(c, n, row).sees(own) || c.report.counted(V09)) return;
  c.report.add(V09, "tree_mask", {n.first_row + row}, formatted("bit {} is 0", own), "1: the row's own key",
               "bit b of a row is bit b % 8, counted from the lowest, of byte b / 8");
}

void v10_later_bits(Context& c, const Lengths& n, std::int64_t row) {
  const semantics::TreeBits bits = bits_of(c, n, row);
  for (std::int64_t b = std::max<std::int64_t>(0, own_bit(n, row) + 1); b < n.tree_len; ++b) {
    if (!bits.sees(b) || c.report.counted(V10)) continue;
    c.report.add(V10, "tree_mask", {n.first_row + row}, formatted("bit {} is 1", b),
                 formatted("0 behind bit {}, the row's own key, in a causal request", own_bit(n, row)));
  }
}

}  // namespace

semantics::TreeRows tree_rows(const Context& c, const Lengths& n) noexcept {
  const Tensor& t = c.batch.tree_mask;
  return {{static_cast<const std::uint8_t*>(t.data) + n.first_row * t.stride[0], t.stride[1]},
          t.stride[0],
          n.query_len,
          n.seq_len - n.tree_len};
}

bool masks_readable(const Context& c) noexcept {
  const Batch& b = c.batch;
  for (const Tensor* t : {&b.prefix_lens, &b.tree_lens})
    if (t->present() && !is_index_array(*t, c.sizes.num_reqs)) return false;
  if (b.spans && (!readable(b.spans) || !spans_shape_ok(c) || (b.spans.dtype != DType::i32 && b.spans.dtype != DType::i64)))
    return false;
  if (b.tree_mask.present() != b.tree_lens.present()) return false;
  return !b.tree_mask || (readable(b.tree_mask) && tree_shape_ok(c));
}

bool mask_ok(const Context& c, const Lengths& n) noexcept {
  return n.prefix_len >= 0 && tree_len_ok(c, n) && (!c.batch.spans || first_wrong_span(c, n.request) == c.batch.spans.shape[1]);
}

void apply_mask_shape_rules(Context& c) {
  v01_chunk(c);
  v02_prefix(c);
  v03_one_prefix(c);
  v04_spans_shape(c);
  v05_tree_shape(c);
}

void apply_mask_value_rules(Context& c, const Lengths& lengths) {
  v06_spans(c, lengths);
  v07_prefix(c, lengths);
  v08_tree_len(c, lengths);
}

void apply_tree_rules(Context& c) {
  if (!c.lengths_sound || !c.batch.tree_mask) return;
  for (std::int64_t r = 0; r < c.sizes.num_reqs; ++r) {
    const Lengths lengths = lengths_of(c, r);
    if (!lengths.sound || !lengths.at_end() || lengths.tree_len == 0) continue;
    for (std::int64_t row = 0; row < lengths.query_len; ++row) {
      v09_own_bit(c, lengths, row);
      if (lengths.causal) v10_later_bits(c, lengths, row);
    }
  }
}

}  // namespace quire::contract
