// SPDX-License-Identifier: Apache-2.0
// Index tensors read with the wrong width: an int64 tensor taken through an untyped pointer to int32. On a little-endian machine
// every second value is then 0 (vllm#28905: torch.cumsum of an int32 tensor returns int64).
#include <cstring>

#include "faults/families.h"
#include "text/formatted.h"

namespace quire::faults_detail {
namespace {

/// Word `i` of an int64 tensor whose elements are read as 32-bit words.
std::int64_t word(const Tensor& t, std::int64_t i) {
  std::int32_t value = 0;
  std::memcpy(&value, static_cast<const char*>(t.data) + i * 4, sizeof value);
  return value;
}

std::vector<std::int64_t> words(const Tensor& t) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < t.shape[0]; ++i) values.push_back(word(t, i));
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
  const auto plant = [f, seen](Model& m) {
    m.row = [f, seen, before = m.row](std::int64_t token, std::int64_t head) {
      Row row = before(token, head);
      const auto owner = [&]() -> std::int64_t {
        for (std::int64_t r = 0; r < f->num_reqs; ++r)
          if (seen[Facts::at(r)] == token && seen[Facts::at(r + 1)] == token + 1) return r;
        return -1;
      }();
      if (owner >= 0) return decode_row(*f, row, owner);
      row.written = row.written && f->query_len(row.req) != 1;
      return row;
    };
  };
  return rows_only(plant, formatted("the decode kernel sees query_lens {}", lengths_seen(seen)));
}

Suspects query_start_loc(const Clues& e) {
  const Tensor& t = e.facts.batch.query_start_loc;
  if (!readable(t)) return cannot_show(int32_tensor("query_start_loc", t));
  const std::vector<std::int64_t> seen = words(t);
  return rows_only([f = &e.facts, seen](Model& m) { believe_query_start_loc(*f, seen, m); },
                   formatted("it sees query_lens {}", lengths_seen(seen)));
}

Suspects seq_lens(const Clues& e) {
  const Tensor& t = e.facts.batch.seq_lens;
  if (!readable(t)) return cannot_show(int32_tensor("seq_lens", t));
  const std::vector<std::int64_t> seen = words(t);
  return rows_only([f = &e.facts, seen](Model& m) { believe_seq_lens(*f, seen, m); },
                   formatted("it sees seq_lens {}", first_values(seen)));
}

Suspects block_table(const Clues& e) {
  const Tensor* t = &e.facts.batch.block_table;
  if (!readable(*t)) return cannot_show(int32_tensor("block_table", *t));
  return one([t](Model& m) {
    m.table = [t](std::int64_t req, std::int64_t column) {
      const bool inside = req >= 0 && req < t->shape[0] && column >= 0 && column < t->shape[1];
      return inside ? word(*t, req * t->stride[0] + column) : 0;
    };
  });
}

}  // namespace

void add_index_width(std::vector<Fault>& list) {
  const char* const kNext =
      "look for an untyped pointer cast of the tensor, and for an operation that promoted it (cumsum of int32 is int64)";
  list.push_back({{"query_start_loc_as_int32_in_decode", "index_width",
                   "reads an int64 query_start_loc as int32 when it picks the decode rows", "vllm#28490, vllm#28905", kNext},
                  Rank::mechanism,
                  decode_query_start_loc});
  list.push_back({{"query_start_loc_as_int32", "index_width", "reads an int64 query_start_loc as int32", "vllm#28905", kNext},
                  Rank::mechanism,
                  query_start_loc});
  list.push_back(
      {{"seq_lens_as_int32", "index_width", "reads an int64 seq_lens as int32", "vllm#28490", kNext}, Rank::mechanism, seq_lens});
  list.push_back({{"block_table_as_int32", "index_width", "reads an int64 block_table as int32", "vllm#28490", kNext},
                  Rank::mechanism,
                  block_table});
}

}  // namespace quire::faults_detail
