// SPDX-License-Identifier: Apache-2.0
// Other prefixes, chunks and spans than the batch's: of another request, rounded to tiles, counted from another position,
// or of another row. The catalogue has those that are off by one, ignored, or the next request's.
#include <algorithm>
#include <utility>

#include "diagnose/mechanisms/mechanism.h"
#include "faults/visible.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

using faults_detail::Shapes;
using faults_detail::shapes_of;
using semantics::round_up;

void add_other_shapes(const Facts& f, const char* text, std::string detail, const char* next, const Shapes& shapes,
                      Proposals& list) {
  list.push_back({"mask", text, std::move(detail), next, 0, faults_detail::sees_by(f, shapes)});
}

/// The page size, and tiles of other sizes.
std::vector<std::int64_t> shape_tiles(const Facts& f) {
  std::vector<std::int64_t> tiles{f.page_size};
  for (const std::int64_t tile : {8, 16, 32, 64, 128})
    if (tile != f.page_size) tiles.push_back(tile);
  return tiles;
}

void propose_prefixes(const Facts& f, Proposals& list) {
  using N = std::int64_t;
  if (!f.has_prefix()) return;
  const auto prefix = [&](std::string detail, std::function<N(N req)> of) {
    Shapes shapes = shapes_of(f);
    shapes.prefix = [of = std::move(of)](const Row& row) { return of(row.req); };
    add_other_shapes(f, "takes another prefix", std::move(detail),
                     "print the prefix that the kernel has for a wrong row's request", shapes, list);
  };
  const std::vector<N>& lens = f.prefix_lens;
  prefix("of request r - 1", [&lens, n = f.num_reqs](N r) { return lens[Facts::at((r + n - 1) % n)]; });
  prefix("of request 0, for all of them", [&lens](N) { return lens.front(); });
  prefix("the longest of the batch, for all of them", [&lens](N) { return *std::max_element(lens.begin(), lens.end()); });
  for (const N tile : shape_tiles(f)) {
    prefix(formatted("rounded up to a multiple of {}", tile), [&lens, tile](N r) { return round_up(lens[Facts::at(r)], tile); });
    prefix(formatted("rounded down to a multiple of {}", tile), [&lens, tile](N r) { return lens[Facts::at(r)] / tile * tile; });
  }
}

/// The position whose chunk a row takes for its own, counted from the request's first key.
using PositionOfChunk = std::function<std::int64_t(const Row&)>;

void propose_chunks(const Facts& f, Proposals& list) {
  using N = std::int64_t;
  if (!f.options.attention_chunk) return;
  const char* const kText = "takes another chunk for the row's";
  const char* const kNextChunk = "a row sees keys k with k / chunk = q / chunk, where both count positions of the sequence";
  const N chunk = *f.options.attention_chunk;
  const auto of_position = [&](std::string detail, const PositionOfChunk& position) {
    Shapes shapes = shapes_of(f);
    const auto begin = [facts = &f, position, chunk](const Row& r) {
      const N shard = facts->key_begin[Facts::at(r.req)];
      return faults_detail::rounded_down(position(r) + shard, chunk) * chunk - shard;
    };
    shapes.chunk_of = [](const Row&, N) { return N{0}; };
    shapes.first = [begin, first = shapes.first](const Row& r) { return std::max(first(r), begin(r)); };
    shapes.last = [begin, chunk, last = shapes.last](const Row& r) { return std::min(last(r), begin(r) + chunk - 1); };
    add_other_shapes(f, kText, std::move(detail), kNextChunk, shapes, list);
  };
  const auto index = [](const Row& r) { return r.token - r.first_token; };
  of_position("the chunk of position q + 1", [](const Row& r) { return r.q_pos + 1; });
  of_position("the chunk of position q - 1", [](const Row& r) { return r.q_pos - 1; });
  of_position("the chunk of the request's first row", [index](const Row& r) { return r.q_pos - index(r); });
  of_position("the chunk of the request's last row", [index](const Row& r) { return r.q_pos - index(r) + r.query_len - 1; });
  for (const N tile : {16, 32, 64, 128}) {
    of_position(formatted("the chunk of the first row of its tile of {}", tile),
                [index, tile](const Row& r) { return r.q_pos - index(r) % tile; });
    of_position(formatted("the chunk of the last row of its tile of {}", tile), [index, tile](const Row& r) {
      return r.q_pos - index(r) + std::min(index(r) / tile * tile + tile, r.query_len) - 1;
    });
  }
  const auto counted = [&](std::string detail, N length, const PositionOfChunk& zero) {
    Shapes shapes = shapes_of(f);
    shapes.chunk_of = [facts = &f, length, zero](const Row& r, N p) {
      return faults_detail::rounded_down(p - facts->key_begin[Facts::at(r.req)] - zero(r), length);
    };
    add_other_shapes(f, kText, std::move(detail), kNextChunk, shapes, list);
  };
  counted("chunks are counted from the request's first row", chunk, [index](const Row& r) { return r.q_pos - index(r); });
  counted("chunks are counted from the end of the sequence", chunk, [](const Row& r) { return r.seq_len; });
  for (const N length : {chunk / 2, 2 * chunk, round_up(chunk, f.page_size)})
    if (length > 0 && length != chunk)
      counted(formatted("chunks have {} keys in place of {}", length, chunk), length,
              [facts = &f](const Row& r) { return -facts->key_begin[Facts::at(r.req)]; });
}

void propose_spans(const Facts& f, Proposals& list) {
  using N = std::int64_t;
  if (!f.batch.spans.present()) return;
  const auto spans = [&](std::string detail, std::function<std::vector<Span>(const Row&)> of) {
    Shapes shapes = shapes_of(f);
    shapes.span_of = [of = std::move(of)](const Row& row, N position) {
      for (const Span& span : of(row))
        if (position >= span.begin && position < span.end) return std::optional(span);
      return std::optional<Span>();
    };
    add_other_shapes(f, "takes other spans", std::move(detail), "print the spans that the kernel has for a wrong row's request",
                     shapes, list);
  };
  const auto changed = [&](std::string detail, std::function<Span(const Row&, Span)> change) {
    spans(std::move(detail), [facts = &f, change = std::move(change)](const Row& row) {
      std::vector<Span> all = facts->spans[Facts::at(row.req)];
      for (Span& span : all) span = change(row, span);
      return all;
    });
  };
  spans("of request r - 1",
        [facts = &f](const Row& r) { return facts->spans[Facts::at((r.req + facts->num_reqs - 1) % facts->num_reqs)]; });
  changed("counted from the request's first row", [](const Row& r, Span s) {
    const N first = r.q_pos - (r.token - r.first_token);
    return Span{s.begin + first, s.end + first};
  });
  for (const N tile : shape_tiles(f)) {
    changed(formatted("ends rounded up to multiples of {}", tile),
            [tile](const Row&, Span s) { return Span{s.begin, round_up(s.end, tile)}; });
    changed(formatted("rounded to whole tiles of {}", tile),
            [tile](const Row&, Span s) { return Span{s.begin / tile * tile, round_up(s.end, tile)}; });
  }
}

}  // namespace

void propose_shapes(const Scene& scene, Proposals& list) {
  propose_prefixes(scene.facts, list);
  propose_chunks(scene.facts, list);
  propose_spans(scene.facts, list);
}

}  // namespace quire::diagnose_detail
