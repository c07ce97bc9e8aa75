// SPDX-License-Identifier: Apache-2.0
// Faults of rows: the set of output rows that are written, their query rows, and the place of the result.
#include <algorithm>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

using Skip = std::function<bool(const Row&)>;

Plant never_writes(Skip skip) {
  return row_changed([skip](Row& r) { r.written = r.written && !skip(r); });
}
Suspect skips(std::string detail, Skip skip) { return {std::move(detail), never_writes(std::move(skip)), true}; }

std::int64_t row_in_request(const Row& r) { return r.token - r.first_token; }

Suspects nothing_written(const Clues& e) {
  if (e.facts.num_tokens == 0) return cannot_show("the batch has no rows");
  return rows_only(never_writes([](const Row&) { return true; }));
}

Suspects last_row(const Clues& e) {
  const std::int64_t last = e.facts.num_tokens - 1;
  if (last < 1) return cannot_show("the batch has fewer than two rows");
  return rows_only(never_writes([last](const Row& r) { return r.token == last; }), formatted("row {}", last));
}

bool has_decode_rows(const Facts& f) {
  return any_request(f, [&f](std::int64_t r) { return f.query_len(r) == 1; });
}

Suspects decode_rows(const Clues& e) {
  if (!has_decode_rows(e.facts)) return cannot_show("no request has query_len 1");
  if (e.facts.max_query_len() <= 1) return cannot_show("every request has query_len 1: this is output_not_written here");
  return rows_only(never_writes([](const Row& r) { return r.query_len == 1; }));
}

Suspects prefill_rows(const Clues& e) {
  if (e.facts.max_query_len() <= 1) return cannot_show("no request has query_len > 1");
  if (!has_decode_rows(e.facts)) return cannot_show("every request has query_len > 1: this is output_not_written here");
  return rows_only(never_writes([](const Row& r) { return r.query_len > 1; }));
}

Suspects request(const Clues& e) {
  std::vector<std::int64_t> order = requests_to_try(e);
  if (order.size() < 2) return cannot_show("fewer than two requests have rows");
  // Planted: not the last one, which last_row_not_written could explain.
  if (e.wrong.empty())
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>((order.size() - 1) / 2), order.end());
  Suspects s;
  for (const std::int64_t req : order)
    s.list.push_back(skips(formatted("request {}", req), [req](const Row& r) { return r.req == req; }));
  return s;
}

Suspects past_max_query_len(const Clues& e) {
  const std::int64_t most = e.facts.max_query_len();
  if (most <= 1) return cannot_show("no request has more than one row");
  std::vector<std::int64_t> caps;
  for (std::int64_t cap = floor_power_of_two(most - 1); cap >= 1; cap /= 2) caps.push_back(cap);
  if (std::find(caps.begin(), caps.end(), most - 1) == caps.end()) caps.push_back(most - 1);
  for (const Sample& sample : e.wrong) {
    const std::int64_t i = sample.token - e.facts.query_start_loc[Facts::at(e.facts.req_of(sample.token))];
    if (i > 0 && caps.size() < kMaxCandidates) caps.push_back(i);
  }
  Suspects s;
  for (const std::int64_t cap : caps)
    s.list.push_back(
        skips(formatted("max_query_len {} instead of {}", cap, most), [cap](const Row& r) { return row_in_request(r) >= cap; }));
  return s;
}

/// Suspects of a grid of query_len / tile programs: no program computes the last, partial tile.
Suspects partial_tile(const Clues& e) {
  Suspects s;
  for (const std::int64_t tile : {128, 64, 32, 16, 8, 4, 2}) {
    const auto cut = [&](std::int64_t r) { return e.facts.query_len(r) > tile && e.facts.query_len(r) % tile != 0; };
    if (!any_request(e.facts, cut)) continue;
    s.list.push_back(skips(formatted("tiles of {} rows", tile),
                           [tile](const Row& r) { return row_in_request(r) >= r.query_len / tile * tile; }));
  }
  return std::move(s).or_why_not("no request has more rows than a tile of 2, 4, ... 128 and a partial last one");
}

Suspects heads_past_cap(const Clues& e) {
  const std::int64_t n = e.facts.num_q_heads;
  if (n == 1) return cannot_show("there is one query head");
  std::vector<std::int64_t> caps;
  for (std::int64_t cap = floor_power_of_two(n - 1); cap >= 1; cap /= 2) caps.push_back(cap);
  for (const std::int64_t cap : {n - 1, n / 2, e.facts.num_kv_heads})
    if (cap < n && std::find(caps.begin(), caps.end(), cap) == caps.end()) caps.push_back(cap);
  Suspects s;
  for (const std::int64_t cap : caps)
    s.list.push_back(skips(formatted("heads {} .. {}", cap, n - 1), [cap](const Row& r) { return r.head >= cap; }));
  return s;
}

/// A decode kernel that skips query_len > 1 only: a request without rows is served at query_start_loc[r], its neighbour's row.
Suspects empty_request(const Clues& e) {
  const Facts* f = &e.facts;
  std::vector<std::int64_t> owner(Facts::at(f->num_tokens), -1);
  bool any = false;
  for (std::int64_t r = 0; r < f->num_reqs; ++r) {
    const std::int64_t row = f->query_start_loc[Facts::at(r)];
    if (f->query_len(r) != 0 || row >= f->num_tokens) continue;
    owner[Facts::at(row)] = r;
    any = true;
  }
  if (!any) return cannot_show("no request with query_len 0 stands before another one's rows");
  return rows_only(row_changed([f, owner](Row& r) {
    if (const std::int64_t req = owner[Facts::at(r.token)]; req >= 0) r = decode_row(*f, r, req);
  }));
}

/// The result of `from` in place of the right one.
void take_row(Model& m, std::function<RowHead(std::int64_t token, std::int64_t head)> from) {
  m.row = [from = std::move(from), before = m.row](std::int64_t token, std::int64_t head) {
    const RowHead source = from(token, head);
    Row row = source.token >= 0 ? before(source.token, source.head) : before(token, head);
    row.written = row.written && source.token >= 0;
    row.token = token;
    row.head = head;
    return row;
  };
}

Suspects shifted_rows(const Clues& e) {
  const std::int64_t n = e.facts.num_tokens;
  if (n < 2) return cannot_show("the batch has fewer than two rows");
  Suspects s;
  for (const std::int64_t by : {1, -1})
    s.list.push_back({formatted("each row is written {} its place", by == 1 ? "one below" : "one above"),
                      [n, by](Model& m) {
                        take_row(m, [n, by](std::int64_t t, std::int64_t h) { return RowHead{t - by < n ? t - by : -1, h}; });
                      },
                      true});
  return s;
}

/// Rows in the order of requests `order`.
Suspects reordered(const Clues& e) {
  const Facts& f = e.facts;
  std::vector<std::int64_t> batch;
  for (std::int64_t r = 0; r < f.num_reqs; ++r)
    if (f.query_len(r) > 0) batch.push_back(r);
  Suspects s;
  const auto add = [&](const char* detail, auto&& before) {
    std::vector<std::int64_t> order = batch;
    std::stable_sort(order.begin(), order.end(), before);
    if (order == batch) return;
    std::vector<std::int64_t> from;
    for (const std::int64_t r : order)
      for (std::int64_t i = 0; i < f.query_len(r); ++i) from.push_back(f.query_start_loc[Facts::at(r)] + i);
    s.list.push_back(
        {detail,
         [from](Model& m) { take_row(m, [from](std::int64_t t, std::int64_t h) { return RowHead{from[Facts::at(t)], h}; }); },
         true});
  };
  add("decode rows first", [&](std::int64_t a, std::int64_t b) { return (f.query_len(a) == 1) > (f.query_len(b) == 1); });
  add("prefill rows first", [&](std::int64_t a, std::int64_t b) { return (f.query_len(a) == 1) < (f.query_len(b) == 1); });
  add("longest query first", [&](std::int64_t a, std::int64_t b) { return f.query_len(a) > f.query_len(b); });
  add("longest sequence first",
      [&](std::int64_t a, std::int64_t b) { return f.seq_lens[Facts::at(a)] > f.seq_lens[Facts::at(b)]; });
  add("shortest sequence first",
      [&](std::int64_t a, std::int64_t b) { return f.seq_lens[Facts::at(a)] < f.seq_lens[Facts::at(b)]; });
  add("last request first", [](std::int64_t a, std::int64_t b) { return a > b; });
  return std::move(s).or_why_not("fewer than two requests have rows");
}

Suspects neighbour_head(const Clues& e) {
  const std::int64_t n = e.facts.num_q_heads;
  if (n < 2) return cannot_show("there is one query head");
  return rows_only(
      [n](Model& m) { take_row(m, [n](std::int64_t t, std::int64_t h) { return RowHead{t, (h ^ 1) < n ? h ^ 1 : h}; }); });
}

Suspects transposed(const Clues& e) {
  const std::int64_t heads = e.facts.num_q_heads, tokens = e.facts.num_tokens;
  if (heads < 2 || tokens < 2) return cannot_show("one head or one row: both orders are the same");
  return rows_only([heads, tokens](Model& m) {
    take_row(m, [heads, tokens](std::int64_t t, std::int64_t h) {
      const std::int64_t flat = t * heads + h;
      return RowHead{flat % tokens, flat / tokens};
    });
  });
}

Suspects repeated_last_row(const Clues& e) {
  if (e.facts.max_query_len() <= 1) return cannot_show("no request has more than one row");
  return rows_only(function_changed(&Model::row, [](const auto& before, std::int64_t token, std::int64_t head) {
    const Row own = before(token, head);
    Row row = before(own.first_token + own.query_len - 1, head);
    row.token = token;
    return row;
  }));
}

Suspects neighbour_query(const Clues& e) {
  const std::int64_t last = e.facts.num_tokens - 1;
  if (last < 1) return cannot_show("the batch has fewer than two rows");
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  Suspects s;
  for (const std::int64_t by : {1, -1})
    s.list.push_back({by == 1 ? "the row below" : "the row above",
                      row_changed([by, last](Row& r) { r.query_token = std::clamp<std::int64_t>(r.query_token + by, 0, last); }),
                      true});
  return s;
}

Suspects first_query_of_request(const Clues& e) {
  if (e.facts.max_query_len() <= 1) return cannot_show("no request has more than one row");
  if (!scores_matter(e.facts)) return cannot_show(kOneKey);
  return rows_only(row_changed([](Row& r) { r.query_token = r.first_token; }));
}

/// Suspects of a kernel that assumes one query row per sequence: row r belongs to request r.
Suspects request_index(const Clues& e) {
  const Facts* f = &e.facts;
  if (f->num_tokens == f->num_reqs && f->max_query_len() <= 1) return cannot_show("row r is the one row of request r");
  return rows_only(row_changed([f](Row& r) {
    if (r.token < f->num_reqs) {
      r = decode_row(*f, r, r.token);
    } else {
      r.written = false;
    }
  }));
}

Suspects all_zero(const Clues& e) {
  if (e.facts.num_tokens == 0) return cannot_show("the batch has no rows");
  return one(result_changed([](const Row&, RowResult& result) { std::fill(result.out.begin(), result.out.end(), 0.0); }));
}

Suspects zero_tail_dims(const Clues& e) {
  const std::int64_t dims = e.facts.v_head_dim;
  if (dims == 1) return cannot_show("head_dim is 1");
  Suspects s;
  for (const std::int64_t cut : shorter_dims(dims))
    s.list.push_back({formatted("dims {} .. {}", cut, dims - 1), result_changed([cut](const Row&, RowResult& result) {
                        std::fill(result.out.begin() + std::min(cut, std::ssize(result.out)), result.out.end(), 0.0);
                      })});
  return s;
}

}  // namespace

void add_rows(std::vector<Fault>& list) {
  const Family add{list, "rows"};
  const char* const kGrid = "compare the launch grid with the largest query_len of the batch";
  const char* const kIndex = "look at how a program finds its row: query_start_loc[r] + i for both the load and the store";
  add("output_not_written", "never writes its output", "", "look for a launch that failed or was skipped", nothing_written,
      Rank::symptom);
  add("output_zero", "writes zeros", "", "look for an accumulator that is never stored, or a loop over keys that never runs",
      all_zero, Rank::symptom);
  add("output_tail_dims_zero", "writes zeros into the last dims", "vllm#34570",
      "look at the loop over dims: a vector width or a tile that does not divide head_dim", zero_tail_dims);
  add("last_row_not_written", "never writes the last row", "", kGrid, last_row, Rank::symptom);
  add("decode_rows_not_written", "never writes the rows of requests with query_len 1", "vllm#28490",
      "was a decode kernel launched? Does it find query_len 1 in the query_start_loc that it reads?", decode_rows);
  add("prefill_rows_not_written", "never writes the rows of requests with query_len > 1", "",
      "max_query_len <= 1 while the batch holds a prefill: the prefill kernel was not launched", prefill_rows);
  add("request_not_written", "never writes the rows of one request", "", kGrid, request, Rank::symptom);
  add("rows_past_max_query_len_not_written", "never writes rows past a max_query_len that is too small", "", kGrid,
      past_max_query_len);
  add("partial_row_tile_not_written", "never writes the last, partial tile of rows of a request", "",
      "round the number of row tiles up", partial_tile);
  add("heads_past_cap_not_written", "never writes the heads past a cap", "",
      "compare the launch grid with num_q_heads, also when the group size was rounded", heads_past_cap, Rank::symptom);
  add("empty_request_overwrites_neighbour", "serves a request with query_len 0 and so overwrites the first row of the next one",
      "", "skip query_len != 1 in the decode kernel, not only query_len > 1", empty_request);
  add("rows_shifted_by_one", "writes every row into its neighbour's place", "", kIndex, shifted_rows);
  add("batch_order_not_restored", "reorders the requests and writes the rows in the new order", "",
      "apply the inverse permutation to the output", reordered);
  add("heads_swapped_in_pairs", "writes head h where head h ^ 1 belongs", "", "look at the head index of the store",
      neighbour_head);
  add("output_transposed", "writes [num_q_heads, num_tokens, head_dim] where [num_tokens, num_q_heads, head_dim] belongs", "",
      "transpose before the copy; check which order the library returns", transposed);
  add("rows_repeat_the_last", "writes a request's last row for each of its rows", "",
      "look for a decode kernel that broadcasts over the rows of a request", repeated_last_row);
  add("query_of_neighbour_row", "loads the query of the neighbouring row", "", kIndex, neighbour_query);
  add("query_of_first_row", "loads the first query row of a request for each of its rows", "", kIndex, first_query_of_request);
  add("row_is_request_index", "takes the request index for the row index, as if every request had one row", "",
      "a decode kernel called without query_start_loc serves row r for request r", request_index);
}

}  // namespace quire::faults_detail
