// Beliefs about index tensors that several families share.
#include "faults/families.h"

#include <fmt/format.h>

namespace quire::fault {

Row decode_row(const Facts& f, Row row, std::int64_t req) {
  row.written = true;
  row.req = req;
  row.query_len = 1;
  row.first_token = row.token;
  row.seq_len = f.seq_lens[Facts::at(req)];
  row.cached_len = f.cached_lens[Facts::at(req)];
  row.q_pos = row.seq_len - 1;
  return row;
}

void believe_query_start_loc(const Facts& facts, std::vector<std::int64_t> seen, Model& model) {
  const Facts* f = &facts;
  model.row = [f, seen = std::move(seen), before = model.row](std::int64_t token, std::int64_t head) {
    Row row = before(token, head);
    for (std::int64_t r = f->num_reqs - 1; r >= 0; --r) {
      const std::int64_t first = seen[Facts::at(r)], end = seen[Facts::at(r + 1)];
      if (token < first || token >= end) continue;
      row.req = r;
      row.first_token = first;
      row.query_len = end - first;
      row.seq_len = f->seq_lens[Facts::at(r)];
      row.cached_len = f->cached_lens[Facts::at(r)];
      row.q_pos = row.context_len() + token - first;
      return row;
    }
    row.written = false;
    return row;
  };
}

void believe_seq_lens(const Facts& facts, std::vector<std::int64_t> seen, Model& model) {
  const Facts* f = &facts;
  model.row = [f, seen = std::move(seen), before = model.row](std::int64_t token, std::int64_t head) {
    Row row = before(token, head);
    row.seq_len = seen[Facts::at(row.req)];
    if (!f->batch.cached_lens.present()) row.cached_len = row.seq_len;
    row.q_pos = row.context_len() + token - row.first_token;
    return row;
  };
}

std::string first_values(const std::vector<std::int64_t>& values) {
  std::string text;
  for (std::size_t i = 0; i < values.size() && i < 10; ++i) text += fmt::format("{}{}", i > 0 ? " " : "", values[i]);
  return values.size() > 10 ? text + " ..." : text;
}

std::string lengths_seen(const std::vector<std::int64_t>& query_start_loc) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i + 1 < query_start_loc.size(); ++i) lengths.push_back(query_start_loc[i + 1] - query_start_loc[i]);
  return first_values(lengths);
}

std::string name_of(DType dtype) { return std::string(name(dtype)); }

}  // namespace quire::fault
