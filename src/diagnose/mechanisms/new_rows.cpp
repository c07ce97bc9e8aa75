// SPDX-License-Identifier: Apache-2.0
// Rows of this step, key and value, taken from elsewhere: rows counted from another row, old bytes of the cache in place of some
// or all of them, and the context that stands before them left out.
#include <algorithm>

#include "diagnose/mechanisms/mechanism.h"
#include "semantics/ceil_div.h"
#include "text/formatted.h"

namespace quire::diagnose_detail {
namespace {

using NewRowChange = std::function<void(const Model&, const Row&, std::int64_t position, Place&)>;

const char* const kNextNewRows =
    "position p of a request is row query_start_loc + p - context_len of key / value from cached_len on, and the cache's before";

void cached_instead(const Model& m, const Row& row, std::int64_t k, Place& place) {
  place.kind = Place::Kind::cache;
  place.page = m.table(row.req, k / m.facts->page_size);
  place.offset = k % m.facts->page_size;
}

void add_new_rows(Proposals& list, Sides sides, std::string detail, int parameters, const NewRowChange& change) {
  list.push_back({"page_contents", formatted("reads {} of this step's rows elsewhere", sides.text()), std::move(detail),
                  kNextNewRows, parameters,
                  function_changed(&Model::place, [sides, change](const auto& before, const Model& model, const Row& row,
                                                                  Side side, std::int64_t k) {
                    Place place = before(model, row, side, k);
                    if (sides.has(side)) change(model, row, k, place);
                    return place;
                  })});
}

/// Another row of key and value.
void propose_other_row(const Facts& f, Sides sides, Proposals& list) {
  using N = std::int64_t;
  const auto other = [&](std::string detail, int parameters, std::function<N(const Row&, N k)> token) {
    add_new_rows(list, sides, std::move(detail), parameters,
                 [token = std::move(token), last = f.num_tokens - 1](const Model&, const Row& row, N k, Place& place) {
                   if (place.kind == Place::Kind::new_row) place.token = std::clamp<N>(token(row, k), 0, last);
                 });
  };
  const auto index = [](const Row& r, N k) { return k - r.context_len(); };
  other("counted from row 0 of the batch", 0, index);
  other("by position, without context_len subtracted", 0, [](const Row& r, N k) { return r.first_token + k; });
  other("each row its own", 0, [](const Row& r, N) { return r.token; });
  other("in reverse order", 0, [index](const Row& r, N k) { return r.first_token + r.query_len - 1 - index(r, k); });
  for (const N by : {-1, 1})
    other(formatted("of request r {:+}", by), 1, [by, facts = &f, index](const Row& r, N k) {
      return facts->query_start_loc[Facts::at(std::clamp<N>(r.req + by, 0, facts->num_reqs - 1))] + index(r, k);
    });
}

/// The cache's old bytes, where positions from cached_len on are not yet.
void propose_old_bytes(const Facts& f, Sides sides, Proposals& list) {
  using N = std::int64_t;
  const auto old = [&](std::string detail, int parameters, std::function<bool(const Row&, N k)> holds) {
    add_new_rows(list, sides, std::move(detail), parameters,
                 [holds = std::move(holds)](const Model& model, const Row& row, N k, Place& place) {
                   if (place.kind == Place::Kind::new_row && holds(row, k)) cached_instead(model, row, k, place);
                 });
  };
  if (!(sides.key && sides.value))  // the catalogue has both
    old("from the cache, where they are not yet", 0, [](const Row&, N) { return true; });
  for (const N n : {1, 2, 4})
    old(formatted("the first {} from the cache, where {} not yet", n == 1 ? "one" : formatted("{}", n),
                  n == 1 ? "it is" : "they are"),
        1, [n](const Row& r, N k) { return k < r.cached_len + n; });
  old("those of the page of cached_len from the cache, where they are not yet", 0,
      [page = f.page_size](const Row& r, N k) { return k < semantics::round_up(r.cached_len, page); });
  old("each row's own from the cache, where it is not yet", 0, [](const Row& r, N k) { return k == r.q_pos; });
  old("all but each row's own from the cache, where they are not yet", 0, [](const Row& r, N k) { return k != r.q_pos; });
}

}  // namespace

void propose_new_rows(const Scene& scene, Proposals& list) {
  if (!scene.facts.batch.key.present()) return;
  for (const Sides sides : kSideSets) {
    propose_other_row(scene.facts, sides, list);
    propose_old_bytes(scene.facts, sides, list);
  }
  list.push_back({"key_range", "leaves the cached context out, and sees this step's rows alone", "", kNextNewRows, 0,
                  keys_dropped([](const Row& row, std::int64_t k) { return k < row.cached_len; })});
}

}  // namespace quire::diagnose_detail
