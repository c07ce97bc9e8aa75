// SPDX-License-Identifier: Apache-2.0
// See invariance.h. Compiled once, for the tests of every backend.
#include "kernels/invariance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "semantics/page_walk.h"
#include "verify/subbatch.h"

namespace quire::test {

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
  for (std::int64_t r = 0; r < c.batch.seq_lens.shape[0]; ++r) {
    const Case alone = verify_detail::slice(c, c.batch.output, c.batch.lse, r, 0, verify_detail::query_len(c.batch, r));
    if (const Status s = attend(alone, 1, rows); !s.ok()) return {s.message()};
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
      const Case part = verify_detail::slice(c, c.batch.output, c.batch.lse, 0, row, std::min(query_len, row + chunk));
      const int threads = 1 + static_cast<int>(row / chunk % 2);
      if (const Status s = attend(part, threads, rows); !s.ok()) return {s.message()};
    }
    if (bits_of(c.batch.output) != whole || bits_of(c.batch.lse) != whole_lse)
      findings.push_back(fmt::format("bits: chunks of {} differ from the whole prompt", chunk));
  }
  return findings;
}

}  // namespace quire::test
