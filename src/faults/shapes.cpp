// SPDX-License-Identifier: Apache-2.0
// Masks with a shape: chunks, spans, an always visible prefix and trees, ignored, taken from a neighbour or counted wrong.
#include <algorithm>
#include <functional>
#include <optional>

#include "faults/families.h"
#include "faults/visible.h"

namespace quire::faults_detail {
namespace {

constexpr std::int64_t kShapedRowsCompared = 4096;  // rows in which a difference is searched; bounds the time
constexpr const char* kSameByShape = "every row sees the same keys all the same";

using Change = std::function<void(Shapes&)>;

/// A kernel that believes in other shapes. Nothing shows where all rows see the same keys by them.
Suspects believe(const Evidence& e, const Change& change) {
  const Facts* f = &e.facts;
  Shapes shapes = shapes_of(*f);
  change(shapes);
  const Model truth(*f);
  std::vector<Key> right, other;
  bool differs = false;
  for (std::int64_t token = 0; token < std::min(f->num_tokens, kShapedRowsCompared) && !differs; ++token) {
    right.clear();
    other.clear();
    const Row row = truth.row(token, 0);
    truth.keys(row, right);
    keys_by(*f, shapes, row, other);
    differs = !std::equal(right.begin(), right.end(), other.begin(), other.end(),
                          [](const Key& a, const Key& b) { return a.position == b.position; });
  }
  if (!differs) return cannot_show(kSameByShape);
  return one([f, shapes](Model& m) {
    m.keys = [f, shapes](const Row& row, std::vector<Key>& keys) { keys_by(*f, shapes, row, keys); };
  });
}

// --- chunks ---------------------------------------------------------------------------------------------------------------

Suspects of_chunk(const Evidence& e, const Change& change) {
  return e.facts.options.attention_chunk ? believe(e, change) : cannot_show("attention_chunk is absent");
}
Suspects chunk_ignored(const Evidence& e) {
  return of_chunk(e, [](Shapes& s) { s.chunk_of = [](const Row&, std::int64_t) { return std::int64_t{0}; }; });
}
Suspects chunk_as_window(const Evidence& e) {
  const std::int64_t chunk = e.facts.options.attention_chunk.value_or(1);
  return of_chunk(e, [chunk](Shapes& s) {
    s.chunk_of = [](const Row&, std::int64_t) { return std::int64_t{0}; };
    s.window = std::min(s.window, chunk);
  });
}
Suspects chunk_one_early(const Evidence& e) {
  const std::int64_t chunk = e.facts.options.attention_chunk.value_or(1);
  return of_chunk(
      e, [chunk](Shapes& s) { s.chunk_of = [chunk](const Row&, std::int64_t p) { return rounded_down(p + 1, chunk); }; });
}
Suspects chunk_from_first_key(const Evidence& e) {
  const Facts* f = &e.facts;
  const std::int64_t chunk = f->options.attention_chunk.value_or(1);
  return of_chunk(e, [f, chunk](Shapes& s) {
    s.chunk_of = [f, chunk](const Row& r, std::int64_t p) { return rounded_down(p - f->key_begin[Facts::at(r.req)], chunk); };
  });
}

// --- prefix ---------------------------------------------------------------------------------------------------------------

Suspects of_prefix(const Evidence& e, std::function<std::int64_t(const Facts&, std::int64_t req)> believed) {
  const Facts* f = &e.facts;
  if (!f->has_prefix()) return cannot_show("there is no prefix");
  return believe(e, [f, believed = std::move(believed)](Shapes& s) {
    s.prefix = [f, believed](const Row& r) { return believed(*f, r.req); };
  });
}
Suspects prefix_ignored(const Evidence& e) {
  return of_prefix(e, [](const Facts&, std::int64_t) { return std::int64_t{0}; });
}
Suspects prefix_one_short(const Evidence& e) {
  return of_prefix(e, [](const Facts& f, std::int64_t r) { return std::max<std::int64_t>(0, f.prefix_lens[Facts::at(r)] - 1); });
}
Suspects prefix_one_long(const Evidence& e) {
  return of_prefix(e, [](const Facts& f, std::int64_t r) { return f.prefix_lens[Facts::at(r)] + 1; });
}
Suspects prefix_of_next(const Evidence& e) {
  return of_prefix(e, [](const Facts& f, std::int64_t r) { return f.prefix_lens[Facts::at((r + 1) % f.num_reqs)]; });
}
Suspects prefix_from_first_key(const Evidence& e) {
  return of_prefix(e, [](const Facts& f, std::int64_t r) { return f.prefix_lens[Facts::at(r)] + f.key_begin[Facts::at(r)]; });
}
Suspects prefix_without_order(const Evidence& e) {
  if (!e.facts.has_prefix()) return cannot_show("there is no prefix");
  return believe(e, [](Shapes& s) { s.prefix_is_ordered = false; });
}

// --- spans ----------------------------------------------------------------------------------------------------------------

Suspects of_spans(const Evidence& e, const Change& change) {
  const bool any = any_request(e.facts, [&](std::int64_t r) { return !e.facts.spans[Facts::at(r)].empty(); });
  return any ? believe(e, change) : cannot_show("there are no spans");
}
Suspects span_ignored(const Evidence& e) {
  return of_spans(e, [](Shapes& s) { s.span_of = [](const Row&, std::int64_t) { return std::optional<Span>(); }; });
}
/// Spans of request `of(r)`, with ends moved by `by`.
Suspects other_spans(const Evidence& e, std::int64_t by, std::function<std::int64_t(const Row&)> of, std::size_t most) {
  const Facts* f = &e.facts;
  return of_spans(e, [f, by, of = std::move(of), most](Shapes& s) {
    s.span_of = [f, by, of, most](const Row& r, std::int64_t p) {
      const std::vector<Span>& spans = f->spans[Facts::at(of(r))];
      for (std::size_t i = 0; i < std::min(most, spans.size()); ++i)
        if (p >= spans[i].begin && p < spans[i].end + by) return std::optional(Span{spans[i].begin, spans[i].end + by});
      return std::optional<Span>();
    };
  });
}
constexpr std::size_t kAllSpans = ~std::size_t{0};
std::int64_t own_request(const Row& r) { return r.req; }
Suspects span_end_included(const Evidence& e) { return other_spans(e, 1, own_request, kAllSpans); }
Suspects span_one_short(const Evidence& e) { return other_spans(e, -1, own_request, kAllSpans); }
Suspects span_first_only(const Evidence& e) { return other_spans(e, 0, own_request, 1); }
Suspects span_of_next(const Evidence& e) {
  const std::int64_t reqs = e.facts.num_reqs;
  return other_spans(e, 0, [reqs](const Row& r) { return (r.req + 1) % reqs; }, kAllSpans);
}
Suspects span_beyond_inverted(const Evidence& e) {
  return of_spans(e, [](Shapes& s) { s.spans_beyond_window = !s.spans_beyond_window; });
}
/// A test of "is the row in a span" alone: rows of one span see the keys of another.
Suspects spans_are_one(const Evidence& e) {
  const Facts* f = &e.facts;
  return of_spans(e, [f](Shapes& s) {
    s.span_of = [f](const Row& r, std::int64_t p) {
      const std::vector<Span>& spans = f->spans[Facts::at(r.req)];
      const bool inside = std::any_of(spans.begin(), spans.end(), [p](const Span& a) { return p >= a.begin && p < a.end; });
      return inside ? std::optional(Span{spans.front().begin, spans.back().end}) : std::nullopt;
    };
  });
}

// --- trees ----------------------------------------------------------------------------------------------------------------

Suspects of_tree(const Evidence& e, const Change& change) {
  const bool any = any_request(e.facts, [&](std::int64_t r) { return e.facts.tree_lens[Facts::at(r)] > 0; });
  return any ? believe(e, change) : cannot_show("there is no tree");
}
Suspects tree_ignored(const Evidence& e) {
  return of_tree(e, [](Shapes& s) { s.tree_len = [](const Row&) { return std::int64_t{0}; }; });
}
Suspects tree_all_visible(const Evidence& e) {
  return of_tree(e, [](Shapes& s) { s.bit = [](const Row&, std::int64_t) { return true; }; });
}
Suspects bit_elsewhere(const Evidence& e, std::function<std::pair<std::int64_t, std::int64_t>(const Row&, std::int64_t)> place) {
  const Facts* f = &e.facts;
  return of_tree(e, [f, place = std::move(place)](Shapes& s) {
    s.bit = [f, place](const Row& r, std::int64_t b) {
      const auto [token, bit] = place(r, b);
      return f->tree_bit(token, bit);
    };
  });
}
Suspects tree_highest_bit_first(const Evidence& e) {
  return bit_elsewhere(e, [](const Row& r, std::int64_t b) { return std::pair(r.query_token, b / 8 * 8 + 7 - b % 8); });
}
Suspects tree_one_late(const Evidence& e) {
  return bit_elsewhere(e, [](const Row& r, std::int64_t b) { return std::pair(r.query_token, b + 1); });
}
Suspects tree_of_next_row(const Evidence& e) {
  return bit_elsewhere(e, [](const Row& r, std::int64_t b) { return std::pair(r.query_token + 1, b); });
}
Suspects tree_of_first_request(const Evidence& e) {
  return bit_elsewhere(e, [](const Row& r, std::int64_t b) { return std::pair(r.query_token - r.first_token, b); });
}
Suspects tree_of_first_row(const Evidence& e) {
  return bit_elsewhere(e, [](const Row& r, std::int64_t b) { return std::pair(r.first_token, b); });
}
Suspects tree_first_byte_only(const Evidence& e) {
  const Facts* f = &e.facts;
  return of_tree(
      e, [f](Shapes& s) { s.bit = [f](const Row& r, std::int64_t b) { return b < 8 && f->tree_bit(r.query_token, b); }; });
}
Suspects tree_hides_context(const Evidence& e) {
  return of_tree(e, [](Shapes& s) { s.tree_alone = true; });
}
Suspects tree_without_own_key(const Evidence& e) {
  const Facts* f = &e.facts;
  return of_tree(e, [f](Shapes& s) {
    s.bit = [f](const Row& r, std::int64_t b) {
      const std::int64_t key = r.seq_len - f->tree_lens[Facts::at(r.req)] + b;
      return key <= r.q_pos - 1 && f->tree_bit(r.query_token, b);
    };
  });
}

}  // namespace

void add_shapes(std::vector<Fault>& list) {
  const auto add = [&](const char* id, const char* text, const char* seen, const char* next,
                       Suspects (*suspects)(const Evidence&)) {
    list.push_back({{id, "shapes", text, seen, next}, Rank::mistake, suspects});
  };
  const char* const kChunk = "a row sees keys k with k / chunk = q / chunk, where both count positions of the sequence";
  const char* const kPrefix =
      "keys below prefix_len are seen through the window: look for where the first tile of keys is chosen";
  const char* const kSpan = "rows and keys of one span [begin, end) see each other: look for how a span is found for a row";
  const char* const kTree = "bit b of a row, counted from the lowest of byte b / 8, is key seq_len - tree_len + b";
  add("chunk_ignored", "lets rows see keys of earlier chunks", "", kChunk, chunk_ignored);
  add("chunk_as_window", "takes the chunk for a sliding window of its length", "", kChunk, chunk_as_window);
  add("chunk_one_early", "begins chunks one position too early", "", kChunk, chunk_one_early);
  add("chunk_from_first_key", "counts chunks from the first key of a shard, not from position 0", "", kChunk,
      chunk_from_first_key);
  add("prefix_ignored", "hides the prefix behind the window", "", kPrefix, prefix_ignored);
  add("prefix_one_short", "keeps one key less of the prefix visible", "", kPrefix, prefix_one_short);
  add("prefix_one_long", "keeps one key more visible than the prefix has", "", kPrefix, prefix_one_long);
  add("prefix_of_next_request", "gives a request the prefix of the next", "", kPrefix, prefix_of_next);
  add("prefix_from_first_key", "counts the prefix from the first key of a shard, not from position 0", "", kPrefix,
      prefix_from_first_key);
  add("prefix_seen_by_earlier_rows", "lets rows within the prefix see its later keys", "", kPrefix, prefix_without_order);
  add("span_ignored", "keeps rows of a span causal", "", kSpan, span_ignored);
  add("span_end_included", "takes the end of a span for its last position", "vllm's mm_prefix_range has an inclusive end", kSpan,
      span_end_included);
  add("span_one_short", "leaves out the last position of a span", "", kSpan, span_one_short);
  add("span_first_only", "knows the first span of a request only", "", kSpan, span_first_only);
  add("span_of_next_request", "gives a request the spans of the next", "", kSpan, span_of_next);
  add("span_beyond_window_inverted", "lets spans reach beyond the window where it bounds them, or bounds them where it must not",
      "transformers, vllm and flashinfer differ in this", kSpan, span_beyond_inverted);
  add("spans_are_one", "lets rows of one span see keys of another", "", kSpan, spans_are_one);
  add("tree_ignored", "takes the keys of a tree for a causal sequence", "", kTree, tree_ignored);
  add("tree_all_visible", "lets every row see all keys of a tree", "", kTree, tree_all_visible);
  add("tree_highest_bit_first", "reads the bits of a byte from the highest", "numpy.packbits without bitorder='little'", kTree,
      tree_highest_bit_first);
  add("tree_one_late", "reads the bit of the key behind", "", kTree, tree_one_late);
  add("tree_of_next_row", "reads the bits of the row behind", "", kTree, tree_of_next_row);
  add("tree_of_first_request", "counts rows of bits from the request's first row, not from the batch's", "", kTree,
      tree_of_first_request);
  add("tree_of_first_row", "gives every row of a request the bits of its first", "", kTree, tree_of_first_row);
  add("tree_first_byte_only", "reads no more than the first eight bits of a row", "", kTree, tree_first_byte_only);
  add("tree_hides_context", "hides the keys before a tree from its rows", "", kTree, tree_hides_context);
  add("tree_without_own_key", "hides a row's own key in a tree", "", kTree, tree_without_own_key);
}

}  // namespace quire::faults_detail
