// SPDX-License-Identifier: Apache-2.0
// Index tensors read with the wrong width: an int64 tensor taken through an untyped pointer to int32. On a little-endian machine
// every second value is then 0 (vllm#28905: torch.cumsum of an int32 tensor returns int64).
#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

std::vector<std::int64_t> words(const Tensor& t) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < t.shape[0]; ++i) values.push_back(word_of(t, i));
  return values;
}

bool readable(const Tensor& t) { return t.dtype == DType::i64 && t.stride[t.rank - 1] == 1; }

std::string int32_tensor(const char* name, const Tensor& t) {
  return formatted("{} is {}: there is nothing to misread", name, name_of(t.dtype));
}

/// A decode kernel serves the requests with query_len 1 that it sees; the rows of prefill requests come from another kernel.
Suspects decode_query_start_loc(const Clues& e) {
  const Tensor& t = e.facts.batch.query_start_loc;
  if (!readable(t)) return cannot_show(int32_tensor("query_start_loc", t));
  const std::vector<std::int64_t> seen = words(t);
  const Facts* f = &e.facts;
  const auto believe = [f, seen](Row& row) {
    for (std::int64_t r = 0; r < f->num_reqs; ++r)
      if (seen[Facts::at(r)] == row.token && seen[Facts::at(r + 1)] == row.token + 1) {
        row = decode_row(*f, row, r);
        return;
      }
    row.written = row.written && f->query_len(row.req) != 1;
  };
  return rows_only(row_changed(believe), formatted("the decode kernel sees query_lens {}", lengths_seen(seen)));
}

Suspects query_start_loc(const Clues& e) {
  const Tensor& t = e.facts.batch.query_start_loc;
  if (!readable(t)) return cannot_show(int32_tensor("query_start_loc", t));
  return starts_seen(e, words(t));
}

Suspects seq_lens(const Clues& e) {
  const Tensor& t = e.facts.batch.seq_lens;
  if (!readable(t)) return cannot_show(int32_tensor("seq_lens", t));
  return seq_lens_seen(e, words(t));
}

Suspects block_table(const Clues& e) {
  const Tensor* t = &e.facts.batch.block_table;
  if (!readable(*t)) return cannot_show(int32_tensor("block_table", *t));
  return one(function_set(&Model::table, [t](std::int64_t req, std::int64_t column) {
    const bool inside = req >= 0 && req < t->shape[0] && column >= 0 && column < t->shape[1];
    return inside ? word_of(*t, req * t->stride[0] + column) : 0;
  }));
}

}  // namespace

void add_index_width(std::vector<Fault>& list) {
  const char* const kNext =
      "look for an untyped pointer cast of the tensor, and for an operation that promoted it (cumsum of int32 is int64)";
  const Family add{list, "index_width"};
  add("query_start_loc_as_int32_in_decode", "reads an int64 query_start_loc as int32 when it picks the decode rows",
      "vllm#28490, vllm#28905", kNext, decode_query_start_loc, Rank::mechanism);
  add("query_start_loc_as_int32", "reads an int64 query_start_loc as int32", "vllm#28905", kNext, query_start_loc,
      Rank::mechanism);
  add("seq_lens_as_int32", "reads an int64 seq_lens as int32", "vllm#28490", kNext, seq_lens, Rank::mechanism);
  add("block_table_as_int32", "reads an int64 block_table as int32", "vllm#28490", kNext, block_table, Rank::mechanism);
}

}  // namespace quire::faults_detail
