// SPDX-License-Identifier: Apache-2.0
// Keys that the mask should hide and does not: with their score, or with score 0. (Ranges that are cut are in key_range.cpp.)
#include <algorithm>

#include "diagnose/mechanisms/mechanism.h"
#include "faults/visible.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

constexpr double kFarBelow = -1e30;  // a score that weighs nothing beside any other

/// Hidden keys up to `end` get a score in place of -inf; so do those before the row's first key if `before` is set.
void plant_scores(Model& m, const std::function<std::int64_t(const Row&)>& end, bool before, double score) {
  m.keys = [f = m.facts, end, before, visible = m.keys](const Row& row, std::vector<Key>& keys) {
    visible(row, keys);
    const std::int64_t first = before ? 0 : f->hull(row.req, row.q_pos).begin;
    const std::int64_t last = std::min(end(row), f->max_pages_per_req * f->page_size) - 1;
    const auto seen = std::ssize(keys);
    for (std::int64_t k = std::max<std::int64_t>(first, 0); k <= last; ++k)
      if (!f->sees(row, k)) keys.push_back({k, 1});
    std::inplace_merge(keys.begin(), keys.begin() + seen, keys.end(),
                       [](const Key& a, const Key& b) { return a.position < b.position; });
  };
  m.score = [f = m.facts, score, own = m.score](const Model& model, const Row& row, std::int64_t k, double dot) {
    return f->sees(row, k) ? own(model, row, k, dot) : score;
  };
}

/// A tile of query rows is masked by one of its rows.
void propose_row_tiles(Proposals& list) {
  for (std::int64_t tile = 2; tile <= 128; tile *= 2) {
    list.push_back({"mask", "lets a row see no more than the first row of its tile sees", formatted("tiles of {} rows", tile),
                    "the mask of a tile differs by row: key k <= q_pos of the row, not of the tile", 1,
                    keys_changed([tile](const Row& row, std::vector<Key>& keys) {
                      const std::int64_t index = row.token - row.first_token, last = row.q_pos - index % tile;
                      std::erase_if(keys, [last](const Key& key) { return key.position > last; });
                    })});
  }
}

/// Rows of bits that are taken for one 32-bit word long, while they have more: a row reads the words of rows before it.
void propose_rows_of_one_word(const Facts& f, Proposals& list) {
  constexpr std::int64_t kWord = 32;
  if (!f.batch.tree_mask.present() || 8 * f.batch.tree_mask.shape[1] <= kWord) return;
  list.push_back({"mask", "takes the rows of tree_mask for one word long", formatted("{} bits", kWord),
                  "take the row stride of tree_mask from the tensor", 0, [](Model& m) {
                    faults_detail::Shapes shapes = faults_detail::shapes_of(*m.facts);
                    shapes.bit = [f = m.facts](const Row& row, std::int64_t b) {
                      const std::int64_t words = semantics::ceil_div(8 * f->batch.tree_mask.shape[1], kWord);
                      const std::int64_t flat = kWord * (row.query_token - row.first_token) + b;
                      return f->tree_bit(row.first_token + flat / (kWord * words), flat % (kWord * words));
                    };
                    m.keys = [f = m.facts, shapes](const Row& row, std::vector<Key>& keys) { keys_by(*f, shapes, row, keys); };
                  }});
}

}  // namespace

void propose_mask(const Scene& scene, Proposals& list) {
  const Facts* f = &scene.facts;
  const std::int64_t page = f->page_size;
  struct End {
    std::string text;
    std::function<std::int64_t(const Row&)> end;
  };
  std::vector<End> ends{{"up to seq_len", [](const Row& r) { return r.seq_len; }},
                        {"up to the end of the last page", [page](const Row& r) { return semantics::round_up(r.seq_len, page); }},
                        {"up to the end of the own page", [page](const Row& r) { return (r.q_pos + page) / page * page; }},
                        {"before the window only", [f](const Row& r) { return f->last_key_of(r) + 1; }}};
  for (const std::int64_t tile : {16, 32, 64, 128})
    ends.push_back({formatted("up to the end of the own tile of {}, within seq_len", tile),
                    [tile](const Row& r) { return std::min(r.seq_len, (r.q_pos + tile) / tile * tile); }});
  const bool hides_before = f->windowed() || f->options.attention_chunk;
  for (const End& end : ends)
    for (const bool before : {false, true}) {
      if (before && !hides_before) continue;
      list.push_back({"mask", "gives hidden keys the score 0 in place of -infinity",
                      end.text + (before ? ", and before the window" : ""),
                      "the mask sets scores to -infinity before the maximum is taken", 0,
                      [end, before](Model& m) { plant_scores(m, end.end, before, 0.0); }});
    }
  // A row that sees a key does not notice; one that sees none averages V.
  for (const End& end : {ends[0], ends[1]})
    list.push_back({"mask", "gives hidden keys a finite score far below all others in place of -infinity", end.text,
                    "a row that sees no key writes 0 and lse -infinity: test for it before the division", 0,
                    [end](Model& m) { plant_scores(m, end.end, /*before=*/true, kFarBelow); }});
  propose_row_tiles(list);
  propose_rows_of_one_word(*f, list);
}

}  // namespace quire::diagnose_detail
