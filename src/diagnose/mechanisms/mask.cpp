// SPDX-License-Identifier: Apache-2.0
// Keys that the mask should hide and does not: with their score, or with score 0. (Ranges that are cut are in key_range.cpp.)
#include <algorithm>

#include "diagnose/mechanisms/mechanism.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

/// Hidden keys up to `end` get score 0 in place of -inf; `values`: their V are added, too.
void plant_zero_scores(Model& m, const Facts* f, const std::function<std::int64_t(const Row&)>& end, bool before_window) {
  m.keys = [f, end, before_window, before = m.keys](const Row& row, std::vector<Key>& keys) {
    const std::int64_t capacity = f->max_pages_per_req * f->page_size;
    if (before_window) append_keys(0, f->first_key(row.q_pos) - 1, keys);
    before(row, keys);
    append_keys(row.q_pos + 1, std::min(end(row), capacity) - 1, keys);
  };
  m.score = [f, before = m.score](const Model& model, const Row& row, std::int64_t k, double dot) {
    return k > row.q_pos || k < f->first_key(row.q_pos) ? 0.0 : before(model, row, k, dot);
  };
}

/// A tile of query rows is masked by one of its rows.
void propose_row_tiles(Proposals& list) {
  for (std::int64_t tile = 2; tile <= 128; tile *= 2) {
    list.push_back({"mask", "lets a row see no more than the first row of its tile sees", formatted("tiles of {} rows", tile),
                    "the mask of a tile differs by row: key k <= q_pos of the row, not of the tile", 1,
                    keys_changed([tile](const Row& row, std::vector<Key>& keys) {
                      const std::int64_t index = row.q_pos - row.context_len(), last = row.q_pos - index % tile;
                      std::erase_if(keys, [last](const Key& key) { return key.position > last; });
                    })});
  }
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
                        {"before the window only", [](const Row& r) { return r.q_pos + 1; }}};
  for (const std::int64_t tile : {16, 32, 64, 128})
    ends.push_back({formatted("up to the end of the own tile of {}, within seq_len", tile),
                    [tile](const Row& r) { return std::min(r.seq_len, (r.q_pos + tile) / tile * tile); }});
  for (const End& end : ends)
    for (const bool before_window : {false, true}) {
      if (before_window && !f->windowed()) continue;
      list.push_back({"mask", "gives hidden keys the score 0 in place of -infinity",
                      end.text + (before_window ? ", and before the window" : ""),
                      "the mask sets scores to -infinity before the maximum is taken", 0,
                      [f, end, before_window](Model& m) { plant_zero_scores(m, f, end.end, before_window); }});
    }
  propose_row_tiles(list);
}

}  // namespace quire::diagnose_detail
