// SPDX-License-Identifier: Apache-2.0
// Faults in starts and lengths of requests: query_start_loc, seq_lens and context_len misunderstood by the whole kernel.
#include <algorithm>

#include "faults/families.h"

namespace quire::faults_detail {
namespace {

Suspects next_request(const Clues& e) {
  const Facts& f = e.facts;
  if (f.num_reqs < 2) return cannot_show("there is one request");
  std::vector<std::int64_t> seen(f.query_start_loc.begin() + 1, f.query_start_loc.end());
  seen.push_back(f.num_tokens);
  return starts_seen(e, std::move(seen));
}

Suspects off_by_one_row(const Clues& e) {
  const Facts& f = e.facts;
  Suspects s;
  for (const std::int64_t by : {1, -1}) {
    std::vector<std::int64_t> seen = f.query_start_loc;
    for (std::size_t i = 1; i + 1 < seen.size(); ++i) seen[i] = std::clamp<std::int64_t>(seen[i] + by, 0, f.num_tokens);
    if (seen != f.query_start_loc) s.list.push_back(std::move(starts_seen(e, std::move(seen)).list.front()));
  }
  return std::move(s).or_why_not("no request starts inside the batch");
}

Suspects padded(const Clues& e) {
  const Facts& f = e.facts;
  std::vector<std::int64_t> seen;
  for (std::int64_t r = 0; r <= f.num_reqs; ++r) seen.push_back(std::min(r * f.max_query_len(), f.num_tokens));
  if (seen == f.query_start_loc) return cannot_show("all requests have the same query_len");
  return starts_seen(e, std::move(seen));
}

Suspects context_is_seq_len(const Clues& e) {
  if (e.facts.num_tokens == 0) return cannot_show("the batch has no rows");
  return rows_only(row_changed([](Row& r) { r.q_pos += r.query_len; }));
}

Suspects without_new_tokens(const Clues& e) {
  const Facts& f = e.facts;
  if (f.max_query_len() <= 1)
    return cannot_show(f.num_tokens == 0 ? "the batch has no rows" : "every query_len is 1: this is seq_lens_off_by_one here");
  std::vector<std::int64_t> seen;
  for (std::int64_t r = 0; r < f.num_reqs; ++r) seen.push_back(f.context_len(r));
  return seq_lens_seen(e, std::move(seen));
}

Suspects off_by_one(const Clues& e) {
  if (e.facts.num_tokens == 0) return cannot_show("the batch has no rows");
  Suspects s;
  for (const std::int64_t by : {-1, 1}) {
    std::vector<std::int64_t> seen = e.facts.seq_lens;
    for (std::int64_t& length : seen) length += by;
    s.list.push_back(std::move(seq_lens_seen(e, std::move(seen)).list.front()));
  }
  return s;
}

Suspects of_neighbour(const Clues& e) {
  const Facts& f = e.facts;
  Suspects s;
  if (f.num_reqs < 2) return cannot_show("there is one request");
  for (const std::int64_t by : {1, -1}) {
    std::vector<std::int64_t> seen;
    for (std::int64_t r = 0; r < f.num_reqs; ++r) seen.push_back(f.seq_lens[Facts::at((r + by + f.num_reqs) % f.num_reqs)]);
    if (!any_request(f, [&](std::int64_t r) { return seen[Facts::at(r)] != f.seq_lens[Facts::at(r)]; })) continue;
    s.list.push_back(std::move(seq_lens_seen(e, std::move(seen)).list.front()));
  }
  return std::move(s).or_why_not("all seq_lens are the same");
}

}  // namespace

void add_starts(std::vector<Fault>& list) {
  const Family add{list, "starts"};
  add("query_start_loc_of_next_request", "reads query_start_loc one request further, as if it had no leading 0", "",
      "query_start_loc has num_reqs + 1 values and starts with 0", next_request);
  add("query_start_loc_off_by_one_row", "places the boundary between requests one row too far", "",
      "compare query_start_loc with the cumulative sum of the query lengths", off_by_one_row);
  add("padded_query_start_loc", "takes every request for as long as the longest", "",
      "look for a padded [num_reqs, max_query_len] view of a packed batch", padded);
  add("context_len_is_seq_len", "takes seq_len for context_len, so that rows sit query_len positions too far right", "",
      "seq_lens include the new tokens; context_len = seq_len - query_len", context_is_seq_len);
  add("seq_lens_without_new_tokens", "is given seq_lens that do not count the new tokens", "",
      "seq_lens include the new tokens; look for context lengths passed in their place", without_new_tokens);
  add("seq_lens_off_by_one", "takes every sequence for one token shorter or longer", "",
      "look for seq_lens updated before or after the step", off_by_one);
  add("seq_len_of_neighbour", "uses the seq_len of the neighbouring request", "", "look at the index into seq_lens",
      of_neighbour);
}

}  // namespace quire::faults_detail
