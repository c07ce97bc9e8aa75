// SPDX-License-Identifier: Apache-2.0
// Masks with a shape: chunks, spans, an always visible prefix and trees, ignored, taken from a neighbour or counted wrong.
#include <algorithm>
#include <functional>
#include <optional>

#include "faults/families.h"
#include "faults/visible.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

using Change = std::function<void(const Facts*, Shapes&)>;

/// A kernel that believes in other shapes, where the batch has a shape of this kind.
Find of(bool (*has)(const Facts&), const char* why_not, Change change) {
  return [has, why_not, change = std::move(change)](const Clues& e) {
    const Facts* f = &e.facts;
    if (!has(*f)) return cannot_show(why_not);
    Shapes shapes = shapes_of(*f);
    change(f, shapes);
    return if_it_changes_a_row(*f, sees_by(*f, shapes));
  };
}

// --- chunks ---------------------------------------------------------------------------------------------------------------

Find of_chunk(Change change) {
  return of([](const Facts& f) { return f.options.attention_chunk.has_value(); }, "attention_chunk is absent", std::move(change));
}
std::int64_t one_chunk(const Row&, std::int64_t) { return 0; }

void add_chunks(const Family& add) {
  const char* const kChunk = "a row sees keys k with k / chunk = q / chunk, where both count positions of the sequence";
  add("chunk_ignored", "lets rows see keys of earlier chunks", "", kChunk,
      of_chunk([](const Facts*, Shapes& s) { s.chunk_of = one_chunk; }));
  add("chunk_as_window", "takes the chunk for a sliding window of its length", "", kChunk,
      of_chunk([](const Facts* f, Shapes& s) {
        s.chunk_of = one_chunk;
        s.first = [f](const Row& r) { return std::max(f->first_key(r.q_pos), r.q_pos - *f->options.attention_chunk + 1); };
      }));
  add("chunk_one_early", "begins chunks one position too early", "", kChunk, of_chunk([](const Facts* f, Shapes& s) {
        s.chunk_of = [f](const Row&, std::int64_t p) { return rounded_down(p + 1, *f->options.attention_chunk); };
      }));
  add("chunk_from_first_key", "counts chunks from the first key of a shard, not from position 0", "", kChunk,
      of_chunk([](const Facts* f, Shapes& s) {
        s.chunk_of = [f](const Row& r, std::int64_t p) {
          return rounded_down(p - f->key_begin[Facts::at(r.req)], *f->options.attention_chunk);
        };
      }));
}

// --- prefix ---------------------------------------------------------------------------------------------------------------

Find of_prefix(Change change) {
  return of([](const Facts& f) { return f.has_prefix(); }, "there is no prefix", std::move(change));
}
Find other_prefix(std::function<std::int64_t(const Facts&, std::int64_t req)> believed) {
  return of_prefix([believed = std::move(believed)](const Facts* f, Shapes& s) {
    s.prefix = [f, believed](const Row& r) { return believed(*f, r.req); };
  });
}

void add_prefixes(const Family& add) {
  using N = std::int64_t;
  const char* const kPrefix =
      "keys below prefix_len are seen through the window: look for where the first tile of keys is chosen";
  add("prefix_ignored", "hides the prefix behind the window", "", kPrefix, other_prefix([](const Facts&, N) { return N{0}; }));
  add("prefix_one_short", "keeps one key less of the prefix visible", "", kPrefix,
      other_prefix([](const Facts& f, N r) { return std::max<N>(0, f.prefix_lens[Facts::at(r)] - 1); }));
  add("prefix_one_long", "keeps one key more visible than the prefix has", "", kPrefix,
      other_prefix([](const Facts& f, N r) { return f.prefix_lens[Facts::at(r)] + 1; }));
  add("prefix_of_next_request", "gives a request the prefix of the next", "", kPrefix,
      other_prefix([](const Facts& f, N r) { return f.prefix_lens[Facts::at((r + 1) % f.num_reqs)]; }));
  add("prefix_from_first_key", "counts the prefix from the first key of a shard, not from position 0", "", kPrefix,
      other_prefix([](const Facts& f, N r) { return f.prefix_lens[Facts::at(r)] + f.key_begin[Facts::at(r)]; }));
  add("prefix_seen_by_earlier_rows", "lets rows within the prefix see its later keys", "", kPrefix,
      of_prefix([](const Facts*, Shapes& s) { s.prefix_is_ordered = false; }));
}

// --- spans ----------------------------------------------------------------------------------------------------------------

Find of_spans(Change change) {
  const auto has = [](const Facts& f) { return any_request(f, [&](std::int64_t r) { return !f.spans[Facts::at(r)].empty(); }); };
  return of(has, "there are no spans", std::move(change));
}
constexpr std::size_t kAllSpans = ~std::size_t{0};
/// The first `most` spans of the request `next` requests further, with ends moved by `by`.
Find other_spans(std::int64_t by, std::int64_t next = 0, std::size_t most = kAllSpans) {
  return of_spans([by, next, most](const Facts* f, Shapes& s) {
    s.span_of = [f, by, next, most](const Row& r, std::int64_t p) {
      const std::vector<Span>& spans = f->spans[Facts::at((r.req + next) % f->num_reqs)];
      for (std::size_t i = 0; i < std::min(most, spans.size()); ++i)
        if (p >= spans[i].begin && p < spans[i].end + by) return std::optional(Span{spans[i].begin, spans[i].end + by});
      return std::optional<Span>();
    };
  });
}
/// A test of "is the row in a span" alone: rows of one span see the keys of another.
void join_spans(const Facts* f, Shapes& s) {
  s.span_of = [f](const Row& r, std::int64_t p) {
    const std::vector<Span>& spans = f->spans[Facts::at(r.req)];
    const bool inside = std::any_of(spans.begin(), spans.end(), [p](const Span& a) { return p >= a.begin && p < a.end; });
    return inside ? std::optional(Span{spans.front().begin, spans.back().end}) : std::nullopt;
  };
}

void add_spans(const Family& add) {
  const char* const kSpan = "rows and keys of one span [begin, end) see each other: look for how a span is found for a row";
  add("span_ignored", "keeps rows of a span causal", "", kSpan, other_spans(0, 0, 0));
  add("span_end_included", "takes the end of a span for its last position", "vllm's mm_prefix_range has an inclusive end", kSpan,
      other_spans(1));
  add("span_one_short", "leaves out the last position of a span", "", kSpan, other_spans(-1));
  add("span_first_only", "knows the first span of a request only", "", kSpan, other_spans(0, 0, 1));
  add("span_of_next_request", "gives a request the spans of the next", "", kSpan, other_spans(0, 1));
  add("span_beyond_window_inverted", "lets spans reach beyond the window where it bounds them, or bounds them where it must not",
      "transformers, vllm and flashinfer differ in this", kSpan,
      of_spans([](const Facts*, Shapes& s) { s.spans_beyond_window = !s.spans_beyond_window; }));
  add("spans_are_one", "lets rows of one span see keys of another", "", kSpan, of_spans(join_spans));
}

// --- trees ----------------------------------------------------------------------------------------------------------------

Find of_tree(Change change) {
  const auto has = [](const Facts& f) { return any_request(f, [&](std::int64_t r) { return f.tree_lens[Facts::at(r)] > 0; }); };
  return of(has, "there is no tree", std::move(change));
}
/// Bit b of a row is read at another row and bit.
Find bit_elsewhere(std::function<std::pair<std::int64_t, std::int64_t>(const Row&, std::int64_t)> place) {
  return of_tree([place = std::move(place)](const Facts* f, Shapes& s) {
    s.bit = [f, place](const Row& r, std::int64_t b) {
      const auto [token, bit] = place(r, b);
      return f->tree_bit(token, bit);
    };
  });
}
Find first_bits_only() {
  std::vector<std::pair<std::string, Find>> ways;
  for (std::int64_t bits = 8; bits <= 128; bits *= 2)
    ways.emplace_back(formatted("the first {} bits", bits), of_tree([bits](const Facts* f, Shapes& shapes) {
                        shapes.bit = [f, bits](const Row& r, std::int64_t b) {
                          return b < bits && f->tree_bit(r.query_token, b);
                        };
                      }));
  return any_of(std::move(ways));
}
void hide_own_key(const Facts* f, Shapes& s) {
  s.bit = [f](const Row& r, std::int64_t b) {
    const std::int64_t key = r.seq_len - f->tree_lens[Facts::at(r.req)] + b;
    return key <= r.q_pos - 1 && f->tree_bit(r.query_token, b);
  };
}

void add_trees(const Family& add) {
  using N = std::int64_t;
  const char* const kTree = "bit b of a row, counted from the lowest of byte b / 8, is key seq_len - tree_len + b";
  add("tree_ignored", "takes the keys of a tree for a causal sequence", "", kTree,
      of_tree([](const Facts*, Shapes& s) { s.tree_len = [](const Row&) { return N{0}; }; }));
  add("tree_all_visible", "lets every row see all keys of a tree", "", kTree,
      of_tree([](const Facts*, Shapes& s) { s.bit = [](const Row&, N) { return true; }; }));
  add("tree_highest_bit_first", "reads the bits of a byte from the highest", "numpy.packbits without bitorder='little'", kTree,
      bit_elsewhere([](const Row& r, N b) { return std::pair(r.query_token, b / 8 * 8 + 7 - b % 8); }));
  add("tree_one_late", "reads the bit of the key behind", "", kTree,
      bit_elsewhere([](const Row& r, N b) { return std::pair(r.query_token, b + 1); }));
  add("tree_of_next_row", "reads the bits of the row behind", "", kTree,
      bit_elsewhere([](const Row& r, N b) { return std::pair(r.query_token + 1, b); }));
  add("tree_of_first_request", "counts rows of bits from the request's first row, not from the batch's", "", kTree,
      bit_elsewhere([](const Row& r, N b) { return std::pair(r.query_token - r.first_token, b); }));
  add("tree_of_first_row", "gives every row of a request the bits of its first", "", kTree,
      bit_elsewhere([](const Row& r, N b) { return std::pair(r.first_token, b); }));
  add("tree_first_byte_only", "reads no more than the first byte or word of a row", "NVIDIA/TensorRT-LLM#12962", kTree,
      first_bits_only());
  add("tree_hides_context", "hides the keys before a tree from its rows", "", kTree,
      of_tree([](const Facts*, Shapes& s) { s.tree_alone = true; }));
  add("tree_without_own_key", "hides a row's own key in a tree", "", kTree, of_tree(hide_own_key));
}

}  // namespace

void add_shapes(std::vector<Fault>& list) {
  const Family family{list, "shapes"};
  add_chunks(family);
  add_prefixes(family);
  add_spans(family);
  add_trees(family);
}

}  // namespace quire::faults_detail
