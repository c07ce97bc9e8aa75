// SPDX-License-Identifier: Apache-2.0
// Faults of slot contents: new tokens that were never appended, or read from the wrong one of their two places (cache, new rows).
#include <algorithm>

#include "faults/families.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

/// K and V of the positions for which `holds` is true are zero.
Plant zero(std::function<bool(const Row&, std::int64_t position)> holds) {
  return cached_place_changed([holds = std::move(holds)](const Model&, const Row& r, Side, std::int64_t k, Place& place) {
    if (holds(r, k)) place.kind = Place::Kind::zero;
  });
}

bool appended(const Facts& f, std::int64_t r) {
  return !f.batch.key.present() || f.cached_lens[Facts::at(r)] == f.seq_lens[Facts::at(r)];
}

Suspects own_slot_zero(const Clues& e) {
  const Facts& f = e.facts;
  if (!any_request(f, [&](std::int64_t r) { return f.query_len(r) == 1; })) return cannot_show("no request has query_len 1");
  if (!any_request(f, [&](std::int64_t r) { return f.query_len(r) == 1 && appended(f, r); }))
    return cannot_show("the new tokens of decode rows come from key / value, not from the cache");
  return one(zero([](const Row& r, std::int64_t k) { return r.query_len == 1 && k == r.seq_len - 1; }));
}

Suspects new_slots_zero(const Clues& e) {
  const Facts& f = e.facts;
  if (!any_request(f, [&](std::int64_t r) { return f.cached_lens[Facts::at(r)] > f.context_len(r); }))
    return cannot_show("no new token is read from the cache");
  if (f.max_query_len() <= 1) return cannot_show("every request has one new token: this is own_slot_zero here");
  return one(zero([](const Row& r, std::int64_t k) { return k >= r.context_len(); }));
}

Suspects context_zero(const Clues& e) {
  const Facts& f = e.facts;
  if (!any_request(f, [&](std::int64_t r) { return first_seen(f, r) < f.context_len(r); }))
    return cannot_show("no row sees a context");
  return one(zero([](const Row& r, std::int64_t k) { return k < r.context_len(); }));
}

Suspects one_side_zero(const Clues& e) {
  const Facts& f = e.facts;
  if (!any_cached(f)) return cannot_show(kNotCached);
  if (!scores_matter(f)) return cannot_show(kOneKey);
  return one(cached_place_changed([](const Model&, const Row&, Side side, std::int64_t, Place& place) {
    if (side == Side::key) place.kind = Place::Kind::zero;
  }));
}

/// Rows of key / value are taken for positions from `first(row)` on.
Plant new_rows_from(std::function<std::int64_t(const Row&)> first) {
  return row_changed([first](Row& r) { r.cached_len = first(r); });
}

Suspects all_from_cache(const Clues& e) {
  if (!any_new_row(e.facts)) return cannot_show("every key comes from the cache");
  return one(new_rows_from([](const Row& r) { return r.seq_len; }));
}

Suspects all_new_from_rows(const Clues& e) {
  const Facts& f = e.facts;
  if (!f.batch.key.present()) return cannot_show("there are no key / value rows");
  if (!any_request(f, [&](std::int64_t r) { return f.cached_lens[Facts::at(r)] > f.context_len(r); }))
    return cannot_show("every new token comes from key / value");
  return one(new_rows_from([](const Row& r) { return std::min(r.cached_len, r.context_len()); }));
}

Suspects neighbour_row(const Clues& e) {
  const Facts* f = &e.facts;
  if (!any_new_row(*f)) return cannot_show("every key comes from the cache");
  Suspects s;
  for (const std::int64_t by : {1, -1})
    s.list.push_back({by == 1 ? "the row below" : "the row above",
                      function_changed(&Model::place,
                                       [f, by](const auto& before, const Model& model, const Row& r, Side side, std::int64_t k) {
                                         Place place = before(model, r, side, k);
                                         place.token = std::clamp<std::int64_t>(place.token + by, 0, f->num_tokens - 1);
                                         return place;
                                       })});
  return s;
}

/// reshape_and_cache with one thread per (head, x-chunk), at most 512 of them and no loop: later chunks keep what was there.
Suspects append_cap(const Clues& e) {
  constexpr std::int64_t kThreads = 512;
  const Facts* f = &e.facts;
  const std::int64_t x = packed_x(f->cache.k.dtype), chunks = semantics::ceil_div(f->head_dim, x);
  if (f->num_kv_heads * chunks <= kThreads)
    return cannot_show(
        formatted("{} KV heads of {} chunks of {} elements fit into {} threads", f->num_kv_heads, chunks, x, kThreads));
  if (!any_cached(*f)) return cannot_show(kNotCached);
  return one(function_changed(&Model::vector, [x, chunks](const auto& before, const Row& r, Side side, const Place& place,
                                                          std::int64_t head, std::span<double> v) {
    if (before) before(r, side, place, head, v);
    for (std::size_t d = 0; place.kind == Place::Kind::cache && d < v.size(); ++d)
      if (head * chunks + static_cast<std::int64_t>(d) / x >= kThreads) v[d] = 0;
  }));
}

}  // namespace

void add_contents(std::vector<Fault>& list) {
  const Family add{list, "contents"};
  const char* const kAppend =
      "append the new tokens before attention, for every row; quire check with a slot ledger finds reads of unwritten slots";
  add("own_slot_zero", "finds zeros in the slot of a decode row's own token, which was never appended", "", kAppend,
      own_slot_zero);
  add("new_slots_zero", "finds zeros in the slots of all new tokens, which were never appended", "", kAppend, new_slots_zero);
  add("context_zero", "finds zeros where the cached context should be", "",
      "was this cache filled, or is it another layer's or another rank's?", context_zero);
  add("cached_keys_zero", "finds zeros in the K cache, while V is there", "",
      "look at the append of K: was it skipped, or did it go to another buffer?", one_side_zero);
  add("all_keys_from_cache", "reads every key from the cache, where the new ones are not yet", "",
      "append before attention, or read positions from cached_len on from key / value", all_from_cache);
  add("new_rows_from_context", "reads every new key from key / value, although some are only in the cache", "",
      "cached_lens may lie between context_len and seq_len", all_new_from_rows);
  add("new_row_of_neighbour", "reads key / value one row beside the right one", "",
      "position p of a request is row query_start_loc + p - context_len", neighbour_row);
  add("append_capped_at_512_threads",
      "appends with at most 512 threads, one per 16-byte chunk of a token, and leaves the other chunks zero", "",
      "look at the launch of reshape_and_cache: num_kv_heads * head_dim / x > 512 needs a loop", append_cap, Rank::mechanism);
}

}  // namespace quire::faults_detail
