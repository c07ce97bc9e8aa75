// SPDX-License-Identifier: Apache-2.0
// The causal mask: which keys above and below the own position a row folds in.
#include <algorithm>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

constexpr const char* kNoLaterKey = "no row has a later key that order hides from it";

std::int64_t index_of(const Row& r) { return r.token - r.first_token; }

Suspects one_future_key(const Clues& e) {
  const Facts* f = &e.facts;
  return if_it_changes_a_row(
      *f,
      keys_between([f](const Row& r) { return f->first_key(r.q_pos); },
                   [f](const Row& r) { return std::min(f->last_key_of(r) + (r.causal ? 1 : 0), r.seq_len - 1); }),
      kNoLaterKey);
}

Suspects no_mask(const Clues& e) {
  const Facts* f = &e.facts;
  return if_it_changes_a_row(
      *f, keys_between([f](const Row& r) { return f->first_key(r.q_pos); }, [](const Row& r) { return r.seq_len - 1; }),
      kNoLaterKey);
}

Suspects self_excluded(const Clues& e) {
  return if_it_changes_a_row(e.facts, keys_dropped([](const Row& r, std::int64_t k) { return k == r.q_pos; }),
                             "no row sees the key at its own position");
}

Suspects top_left(const Clues& e) {
  const Facts* f = &e.facts;
  return if_it_changes_a_row(*f,
                             keys_between([f](const Row& r) { return f->first_key(index_of(r)); },
                                          [f](const Row& r) { return r.causal ? index_of(r) : f->last_key_of(r); }),
                             "no request has a context: both alignments of the mask are the same");
}

/// Row i sees every key that the last row of its tile of rows sees.
Suspects by_tile(const Clues& e) {
  const Facts* f = &e.facts;
  const std::int64_t most = f->max_query_len();
  if (most <= 2) return cannot_show("no request has more than two rows: a tile of rows is all of them, or one row");
  Suspects s;
  for (const std::int64_t tile : {128, 64, 32, 16, 8, 4, 2}) {
    if (tile >= most) continue;
    const auto plant = keys_between([f](const Row& r) { return f->first_key(r.q_pos); },
                                    [f, tile](const Row& r) {
                                      const std::int64_t end = f->last_key_of(r) - index_of(r) % tile + tile;
                                      return std::min(r.seq_len, end) - 1;
                                    });
    s.list.push_back({formatted("tiles of {} rows", tile), plant});
  }
  return s;
}

/// Short runs of rows are draft tokens; a decode kernel gives each of them the whole sequence.
Suspects speculative_rows(const Clues& e) {
  constexpr std::int64_t kMost = 16;
  const Facts* f = &e.facts;
  const auto shorter = [f](std::int64_t r) { return f->query_len(r) >= 2 && f->query_len(r) <= kMost; };
  const auto longer = [f](std::int64_t r) { return f->query_len(r) > kMost; };
  if (!any_request(*f, shorter)) return cannot_show(formatted("no request has 2 to {} rows", kMost));
  if (!any_request(*f, longer))
    return cannot_show(formatted("no request has more than {} rows: this is causal_mask_missing here", kMost));
  return one(keys_between([f](const Row& r) { return f->first_key(r.q_pos); },
                          [f](const Row& r) { return r.query_len <= kMost ? r.seq_len - 1 : f->last_key_of(r); }));
}

Suspects context_rounded(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_request(*f, [f](std::int64_t r) { return f->context_len(r) % f->page_size != 0; }))
    return cannot_show(formatted("every context_len is a multiple of the page_size {}", f->page_size));
  return one(row_changed([f](Row& r) { r.q_pos -= r.context_len() % f->page_size; }));
}

}  // namespace

void add_mask(std::vector<Fault>& list) {
  const Family add{list, "mask"};
  add("causal_sees_one_future_key", "lets a row see one key past its own position", "",
      "compare < and <= in the causal test: a key is visible if k <= q_pos", one_future_key);
  add("causal_excludes_own_key", "hides a row's own key from it", "", "compare < and <= in the causal test", self_excluded);
  add("causal_mask_missing", "lets every row see the whole sequence", "",
      "look for a causal flag that is off, or a decode kernel that serves rows of a prefill", no_mask);
  add("causal_mask_top_left", "aligns the causal mask with the first key, so that row i sees keys 0 .. i whatever the context",
      "", "add context_len to the row index; libraries differ in where they align a mask that is not square", top_left);
  add("causal_mask_by_tile", "lets a row see what the last row of its tile sees", "",
      "look for a mask that is tested once per tile of rows", by_tile);
  add("speculative_rows_see_all", "takes runs of 2 to 16 rows for decode rows that see the whole sequence", "",
      "look at the predicate that calls a request a decode: query_len 1, or a few rows", speculative_rows);
  add("context_rounded_to_page", "takes context_len for a multiple of page_size, so that rows sit too far left", "",
      "look for context_len / page_size * page_size in the address or mask computation", context_rounded);
}

}  // namespace quire::faults_detail
