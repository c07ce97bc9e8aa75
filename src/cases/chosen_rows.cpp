// SPDX-License-Identifier: Apache-2.0
// See chosen_rows.h.
#include "cases/chosen_rows.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

namespace quire::cases {
namespace {

constexpr std::int64_t kTile = 64;
constexpr std::int64_t kShortRequest = 4;    // requests up to this many rows are compared whole
constexpr std::int64_t kBordersPerKind = 4;  // page and tile borders per request and end

/// Rows of one request that a kernel treats differently from their neighbours.
void add_special_rows(const Request& r, std::int64_t page_size, std::int64_t first, std::set<std::int64_t>& rows) {
  const auto add = [&](std::int64_t i) {
    if (i >= 0 && i < r.query_len) rows.insert(first + i);
  };
  for (std::int64_t i = 0; i < std::min(kShortRequest, r.query_len); ++i) add(i);
  add(r.query_len - 2);
  add(r.query_len - 1);
  for (std::int64_t n = 0; n < kBordersPerKind; ++n) {
    // The first page borders and the last: q_pos a multiple of page_size, and the row before it.
    const std::int64_t from_start = (r.first_row() / page_size + 1 + n) * page_size - r.first_row();
    const std::int64_t from_end = ((r.seq_len() - 1) / page_size - n) * page_size - r.first_row();
    for (const std::int64_t i : {from_start, from_end, (n + 1) * kTile, (r.query_len / kTile - n) * kTile}) {
      add(i - 1);
      add(i);
    }
  }
}

std::int64_t work(const Problem& p) { return p.visible_pairs() * p.num_q_heads * p.head_dim; }

}  // namespace

std::vector<std::int64_t> choose_rows(const Problem& p, std::int64_t budget, std::uint64_t seed) {
  const std::int64_t total = p.num_tokens();
  if (total == 0 || work(p) <= budget) return {};
  std::set<std::int64_t> rows;
  std::int64_t first = 0;
  for (const Request& r : p.reqs) {
    add_special_rows(r, p.page_size, first, rows);
    first += r.query_len;
  }
  const double share = static_cast<double>(budget) / static_cast<double>(work(p));
  const auto wanted = static_cast<std::size_t>(share * static_cast<double>(total));
  std::mt19937_64 random(seed);
  while (rows.size() < std::min(wanted, static_cast<std::size_t>(total)))
    rows.insert(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(total)));
  return {rows.begin(), rows.end()};
}

Tensor rows_of(const Tensor& t, const std::vector<std::int64_t>& tokens, std::vector<std::byte>& bytes) {
  if (!t.present() || tokens.empty()) return t;
  const auto row = static_cast<std::size_t>(t.num_elements() / t.shape[0] * itemsize(t.dtype));
  bytes.resize(tokens.size() * row);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    std::memcpy(bytes.data() + i * row, static_cast<const std::byte*>(t.data) + static_cast<std::size_t>(tokens[i]) * row, row);
  auto shape = t.shape;
  shape[0] = static_cast<std::int64_t>(tokens.size());
  return Tensor::from_shape(bytes.data(), t.dtype, shape, t.rank);
}

std::vector<bool> rounded_rows(const Plan& plan, const Problem& problem) {
  std::vector<bool> rows;
  for (const Request& r : problem.reqs)
    rows.insert(rows.end(), static_cast<std::size_t>(r.query_len), rounds_weights(plan, r.query_len));
  return rows;
}

void allow_rounded_rows(Reference& expected, DType query, const std::vector<bool>& rounded,
                        const std::vector<std::int64_t>& tokens) {
  std::vector<bool> chosen;
  if (tokens.empty()) {
    chosen = rounded;
    chosen.resize(static_cast<std::size_t>(expected.num_tokens), false);  // padding rows weigh nothing
  }
  for (const std::int64_t token : tokens) chosen.push_back(rounded[static_cast<std::size_t>(token)]);
  allow_rounded_weights(expected, is_fp8(query) ? DType::f16 : query, chosen);
}

}  // namespace quire::cases
