// SPDX-License-Identifier: Apache-2.0
// See driver.h.
#include "bench/driver.h"

#include <algorithm>

#include "cases/chosen_rows.h"

namespace quire::bench_detail {
namespace {

/// visible pairs x query heads x head_dim that the reference may cost: about two seconds.
constexpr std::int64_t kBudget = 3'000'000'000;

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
  std::vector<std::byte> out_rows, lse_rows;
  return compare(cases::rows_of(output, tokens_, out_rows), cases::rows_of(lse, tokens_, lse_rows), reference_);
}

}  // namespace quire::bench_detail
