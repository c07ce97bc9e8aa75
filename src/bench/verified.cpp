// SPDX-License-Identifier: Apache-2.0
// See driver.h.
#include "bench/driver.h"

#include <algorithm>
#include <cstring>

#include "cases/chosen_rows.h"

namespace quire::bench_detail {
namespace {

/// visible pairs x query heads x head_dim that the reference may cost: about two seconds.
constexpr std::int64_t kBudget = 3'000'000'000;

/// The rows `tokens` of a contiguous tensor, one after the other.
std::vector<std::byte> chosen(const Tensor& t, const std::vector<std::int64_t>& tokens) {
  if (!t.present()) return {};
  const std::int64_t row = t.shape[0] > 0 ? t.num_elements() / t.shape[0] * itemsize(t.dtype) : 0;
  std::vector<std::byte> bytes(tokens.size() * static_cast<std::size_t>(row));
  std::byte* next = bytes.data();
  for (const std::int64_t token : tokens) {
    std::memcpy(next, static_cast<const std::byte*>(t.data) + token * row, static_cast<std::size_t>(row));
    next += row;
  }
  return bytes;
}

Tensor rows_of(const Tensor& t, void* data, std::size_t rows) {
  if (!t.present()) return t;
  auto shape = t.shape;
  shape[0] = static_cast<std::int64_t>(rows);
  return Tensor::from_shape(data, t.dtype, shape, t.rank);
}

}  // namespace

Result<Expected> Expected::make(const Case& c, const Problem& problem, std::uint64_t seed) {
  Expected expected;
  expected.query_ = problem.q_dtype;
  expected.tokens_ = cases::choose_rows(problem, kBudget, seed);
  Result<Reference> computed = expected.tokens_.empty() ? reference(c.batch, c.cache, c.options)
                                                        : reference(c.batch, c.cache, c.options, expected.tokens_);
  if (!computed.ok()) return computed.status();
  expected.reference_ = std::move(computed).value();
  return expected;
}

Comparison Expected::judge(const Tensor& output, const Tensor& lse, const std::vector<bool>& rounded) const {
  if (std::find(rounded.begin(), rounded.end(), true) != rounded.end()) {
    Expected wider = *this;
    cases::allow_rounded_rows(wider.reference_, query_, rounded, tokens_);
    return wider.judge(output, lse);
  }
  if (tokens_.empty()) return compare(output, lse, reference_);
  std::vector<std::byte> out_rows = chosen(output, tokens_), lse_rows = chosen(lse, tokens_);
  return compare(rows_of(output, out_rows.data(), tokens_.size()), rows_of(lse, lse_rows.data(), tokens_.size()), reference_);
}

}  // namespace quire::bench_detail
