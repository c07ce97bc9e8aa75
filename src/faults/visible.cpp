// SPDX-License-Identifier: Apache-2.0
// See visible.h.
#include "faults/visible.h"

#include <algorithm>
#include <limits>

namespace quire::faults_detail {
namespace {

constexpr std::int64_t kFar = std::int64_t{1} << 40;

bool is_seen(const Facts& f, const Shapes& s, const Row& row, std::int64_t q, std::int64_t k) {
  const std::optional<Span> span = s.span_of(row, q);
  const bool together = span && k >= span->begin && k < span->end;
  const std::int64_t reach = row.causal ? 0 : std::min(f.options.window_right.value_or(kFar), kFar);
  const bool ordered = k <= q + reach, in_prefix = k < s.prefix(row);
  if (!ordered && !together) return in_prefix && !s.prefix_is_ordered && q < s.prefix(row);
  if (in_prefix || (together && s.spans_beyond_window)) return true;
  return q - k < s.window && s.chunk_of(row, q) == s.chunk_of(row, k);
}

}  // namespace

std::int64_t rounded_down(std::int64_t position, std::int64_t chunk) {
  return (position >= 0 ? position : position - chunk + 1) / chunk;
}

Shapes shapes_of(const Facts& facts) {
  const Facts* f = &facts;
  Shapes s;
  s.window = f->windowed() ? std::min(f->window(), kFar) : kFar;
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
  const std::int64_t q = row.q_pos + f.key_begin[Facts::at(row.req)];
  const std::int64_t reach = row.causal ? 0 : std::min(f.options.window_right.value_or(kFar), kFar);
  const std::int64_t first = f.key_begin[Facts::at(row.req)], end = first + row.seq_len;
  // Returns the position that is nearest to `outside`, and not `outside` itself, in the row's chunk.
  const auto same_chunk = [&](std::int64_t inside, std::int64_t outside) {
    const std::int64_t chunk = s.chunk_of(row, q), step = outside < inside ? 1 : -1;
    for (std::int64_t apart = (inside - outside) * step; apart > 1; apart = (inside - outside) * step) {
      const std::int64_t middle = outside + apart / 2 * step;
      (s.chunk_of(row, middle) == chunk ? inside : outside) = middle;
    }
    return inside;
  };
  const std::int64_t low = std::max(q - s.window + 1, first), high = std::min(q + reach, end - 1);
  std::vector<Span> ranges{{std::numeric_limits<std::int32_t>::min(), s.prefix(row)},
                           {low <= q ? same_chunk(q, low - 1) : low, (high >= q ? same_chunk(q, high + 1) : high) + 1}};
  if (const std::optional<Span> span = s.span_of(row, q)) ranges.push_back(*span);
  std::sort(ranges.begin(), ranges.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return ranges;
}

void keys_by(const Facts& facts, const Shapes& shapes, const Row& row, std::vector<Key>& keys) {
  const std::int64_t begin = facts.key_begin[Facts::at(row.req)];
  const std::int64_t tree_len = std::min(shapes.tree_len(row), row.seq_len), tree_begin = row.seq_len - tree_len;
  const std::int64_t q = row.q_pos + begin;
  std::int64_t next = begin;
  for (const Span& range : ranges_of(facts, shapes, row))
    for (std::int64_t k = std::max(next, range.begin); k < std::min(range.end, tree_begin + begin); next = ++k)
      if (!(shapes.tree_alone && tree_len > 0) && is_seen(facts, shapes, row, q, k)) keys.push_back({k - begin, 1});
  for (std::int64_t b = 0; b < tree_len; ++b)
    if (shapes.bit(row, b)) keys.push_back({tree_begin + b, 1});
}

}  // namespace quire::faults_detail
