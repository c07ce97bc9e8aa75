// SPDX-License-Identifier: Apache-2.0
// See visible.h.
#include "faults/visible.h"

#include <algorithm>
#include <limits>

namespace quire::faults_detail {
namespace {

constexpr std::int64_t kFar = std::int64_t{1} << 40;

Span both(const Span& a, const Span& b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

/// Positions in the chunk of `q`, as far as they lie in [low, high].
Span in_chunk(const Shapes& s, const Row& row, std::int64_t q, std::int64_t low, std::int64_t high) {
  const std::int64_t chunk = s.chunk_of(row, q);
  // Returns the position that is nearest to `outside`, and not `outside` itself, in the row's chunk.
  const auto same_chunk = [&](std::int64_t inside, std::int64_t outside) {
    const std::int64_t step = outside < inside ? 1 : -1;
    for (std::int64_t apart = (inside - outside) * step; apart > 1; apart = (inside - outside) * step) {
      const std::int64_t middle = outside + apart / 2 * step;
      (s.chunk_of(row, middle) == chunk ? inside : outside) = middle;
    }
    return inside;
  };
  return {low <= q ? same_chunk(q, low - 1) : low, (high >= q ? same_chunk(q, high + 1) : high) + 1};
}

/// Disjoint ranges in rising order; empty ones are left out.
std::vector<Span> united(std::vector<Span> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> apart;
  for (const Span& range : ranges) {
    if (range.begin >= range.end) continue;
    if (apart.empty() || apart.back().end < range.begin) apart.push_back(range);
    apart.back().end = std::max(apart.back().end, range.end);
  }
  return apart;
}

}  // namespace

std::int64_t rounded_down(std::int64_t position, std::int64_t chunk) {
  return (position >= 0 ? position : position - chunk + 1) / chunk;
}

Shapes shapes_of(const Facts& facts) {
  const Facts* f = &facts;
  Shapes s;
  s.first = [f](const Row& row) { return f->first_key(row.q_pos); };
  s.last = [f](const Row& row) { return std::min(f->last_key(row.q_pos, row.causal), row.seq_len - 1); };
  s.spans_beyond_window = f->options.spans_beyond_window;
  s.chunk_of = [chunk = f->options.attention_chunk.value_or(kFar)](const Row&, std::int64_t p) { return rounded_down(p, chunk); };
  s.prefix = [f](const Row& row) { return f->prefix_lens[Facts::at(row.req)]; };
  s.span_of = [f](const Row& row, std::int64_t position) {
    for (const Span& span : f->spans[Facts::at(row.req)])
      if (position >= span.begin && position < span.end) return std::optional(span);
    return std::optional<Span>();
  };
  s.tree_len = [f](const Row& row) { return f->tree_lens[Facts::at(row.req)]; };
  s.bit = [f](const Row& row, std::int64_t bit) { return f->tree_bit(row.query_token, bit); };
  return s;
}

std::vector<Span> ranges_of(const Facts& f, const Shapes& s, const Row& row) {
  const std::int64_t begin = f.key_begin[Facts::at(row.req)], q = row.q_pos + begin, prefix = s.prefix(row);
  const std::int64_t first = std::max<std::int64_t>(s.first(row), 0) + begin, last = s.last(row) + begin;
  const Span ordered{begin, last + 1}, near = in_chunk(s, row, q, first, last);
  // Rows within an unordered prefix see its later keys.
  const Span in_prefix{begin, std::min(prefix, s.prefix_is_ordered || q >= prefix ? last + 1 : begin + row.seq_len)};
  std::vector<Span> ranges{both(ordered, near), in_prefix};
  if (const std::optional<Span> span = s.span_of(row, q)) {
    // Keys of the own span are seen against the order, but neither beyond the window nor in another chunk.
    const Span inside = both(*span, {begin, begin + row.seq_len});
    const Span window = in_chunk(s, row, q, first, std::max(inside.end, q));
    ranges.push_back(s.spans_beyond_window ? inside : both(inside, window));
    ranges.push_back(both(inside, {begin, prefix}));
  }
  ranges = united(std::move(ranges));
  for (Span& range : ranges) range = {range.begin - begin, range.end - begin};
  return ranges;
}

void keys_by(const Facts& facts, const Shapes& shapes, const Row& row, std::vector<Key>& keys) {
  const std::int64_t tree_len = std::min(shapes.tree_len(row), row.seq_len), tree_begin = row.seq_len - tree_len;
  const std::vector<Span> ranges = ranges_of(facts, shapes, row);
  for (const Span& range : ranges)
    if (!(shapes.tree_alone && tree_len > 0)) append_keys(range.begin, std::min(range.end, tree_begin) - 1, keys);
  for (std::int64_t b = 0; b < tree_len; ++b)
    if (shapes.bit(row, b)) keys.push_back({tree_begin + b, 1});
  for (const Span& range : ranges) append_keys(std::max(range.begin, row.seq_len), range.end - 1, keys);
}

std::function<void(Model&)> sees_by(const Facts& facts, const Shapes& shapes) {
  return [f = &facts, shapes](Model& m) {
    m.keys = [f, shapes](const Row& row, std::vector<Key>& keys) { keys_by(*f, shapes, row, keys); };
  };
}

void keys_within(const Facts& f, const Row& row, std::int64_t first, std::int64_t last, std::vector<Key>& keys) {
  first = std::max<std::int64_t>(first, 0);
  last = std::min(last, f.max_pages_per_req * f.page_size + f.num_tokens - 1);
  if (!f.has_shapes) return append_keys(first, last, keys);
  Shapes shapes = shapes_of(f);
  shapes.first = [first](const Row&) { return first; };
  shapes.last = [last](const Row&) { return last; };
  keys_by(f, shapes, row, keys);
}

}  // namespace quire::faults_detail
