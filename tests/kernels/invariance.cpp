// SPDX-License-Identifier: Apache-2.0
// See invariance.h. Compiled once, for the tests of every backend.
#include "kernels/invariance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "semantics/page_walk.h"

namespace quire::test {

static Tensor part_of_request(const Tensor& t, std::int64_t r) {
  Tensor part = t;
  if (!t.present()) return part;
  part.data = static_cast<char*>(t.data) + r * t.stride[0] * itemsize(t.dtype);
  part.shape[0] = 1;
  return part;
}

Case slice(const Case& c, std::int64_t r, std::int64_t row_begin, std::int64_t row_end,
           std::vector<std::vector<std::int64_t>>& keep) {
  const semantics::IndexView starts = semantics::index_view(c.batch.query_start_loc),
                             lens = semantics::index_view(c.batch.seq_lens);
  const std::int64_t context = lens[r] - (starts[r + 1] - starts[r]), rows = row_end - row_begin, first = starts[r] + row_begin;
  const auto index = [&](std::vector<std::int64_t> values) {
    keep.push_back(std::move(values));
    return Tensor::contiguous(keep.back().data(), DType::i64, keep.back().size());
  };
  const auto rows_of = [&](const Tensor& t) {
    Tensor part = t;
    if (!t.present()) return part;
    part.data = static_cast<char*>(t.data) + first * t.stride[0] * itemsize(t.dtype);
    part.shape[0] = rows;
    return part;
  };
  Case one;
  one.cache = c.cache;
  one.options = c.options;
  one.batch.query = rows_of(c.batch.query);
  one.batch.output = rows_of(c.batch.output);
  one.batch.lse = rows_of(c.batch.lse);
  one.batch.key = rows_of(c.batch.key);
  one.batch.value = rows_of(c.batch.value);
  one.batch.query_start_loc = index({0, rows});
  one.batch.seq_lens = index({context + row_end});
  if (c.batch.cached_lens.present()) {
    // Rows before the slice have been appended by then; a slice of a batch with uncached rows is taken whole only.
    one.batch.cached_lens = index({semantics::index_view(c.batch.cached_lens)[r]});
  }
  one.batch.block_table = c.batch.block_table;
  one.batch.block_table.data =
      static_cast<char*>(c.batch.block_table.data) + r * c.batch.block_table.stride[0] * itemsize(c.batch.block_table.dtype);
  one.batch.block_table.shape[0] = 1;
  one.batch.key_begin = part_of_request(c.batch.key_begin, r);
  one.batch.causal = part_of_request(c.batch.causal, r);
  const Request req = request_of(c.batch, c.options, r);
  if (req.causal && !c.batch.q_begin.present()) return one;
  // The keys do not end with the last row of the slice: it sees all of them, from where its rows stand.
  one.batch.seq_lens = index({req.seq_len()});
  if (rows == req.query_len && !c.batch.q_begin.present()) return one;
  const std::int64_t at = std::max<std::int64_t>(0, req.first_row() + row_begin);  // distances count, positions do not
  one.batch.q_begin = index({at});
  one.batch.key_begin = index({at - req.first_row() - row_begin});
  return one;
}

std::vector<std::uint32_t> bits_of(const Tensor& t) {
  std::vector<std::uint32_t> all;
  for (std::int64_t i = 0; i < t.num_elements(); ++i)
    all.push_back(semantics::float_to_bits(semantics::load(t.data, t.dtype, i)));
  return all;
}

std::vector<std::string> judge_alone(const Case& c, const Attend& attend) {
  std::int64_t rows = 0;
  if (const Status s = attend(c, 4, rows); !s.ok()) return {s.message()};
  const auto together = bits_of(c.batch.output), together_lse = bits_of(c.batch.lse);
  const semantics::IndexView starts = semantics::index_view(c.batch.query_start_loc);
  for (std::int64_t r = 0; r < c.batch.seq_lens.shape[0]; ++r) {
    std::vector<std::vector<std::int64_t>> keep;
    keep.reserve(kSliceTensors);
    if (const Status s = attend(slice(c, r, 0, starts[r + 1] - starts[r], keep), 1, rows); !s.ok()) return {s.message()};
  }
  if (bits_of(c.batch.output) == together && bits_of(c.batch.lse) == together_lse) return {};
  return {"bits: requests alone differ from the batch"};
}

void forget_rows(const Case& c, std::int64_t rows) {
  for (const Tensor* t : {&c.batch.output, &c.batch.lse})
    if (t->present()) std::memset(t->data, 0xff, static_cast<std::size_t>(rows * t->stride[0] * itemsize(t->dtype)));
}

std::vector<std::string> judge_chunked(const Case& c, const Attend& attend) {
  std::int64_t rows = 0;
  if (const Status s = attend(c, 13, rows); !s.ok()) return {s.message()};
  const auto whole = bits_of(c.batch.output), whole_lse = bits_of(c.batch.lse);
  const std::int64_t query_len = semantics::index_view(c.batch.query_start_loc)[1];
  std::vector<std::string> findings;
  for (const std::int64_t chunk : {1, 7, 16, 64, 512}) {
    if (query_len > 512 && chunk < 16) continue;  // shorter prompts have these
    if (query_len < chunk) continue;
    forget_rows(c, query_len);
    for (std::int64_t row = 0; row < query_len; row += chunk) {
      std::vector<std::vector<std::int64_t>> keep;
      keep.reserve(kSliceTensors);
      const int threads = 1 + static_cast<int>(row / chunk % 2);
      if (const Status s = attend(slice(c, 0, row, std::min(query_len, row + chunk), keep), threads, rows); !s.ok())
        return {s.message()};
    }
    if (bits_of(c.batch.output) != whole || bits_of(c.batch.lse) != whole_lse)
      findings.push_back(fmt::format("bits: chunks of {} differ from the whole prompt", chunk));
  }
  return findings;
}

}  // namespace quire::test
