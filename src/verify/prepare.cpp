// SPDX-License-Identifier: Apache-2.0
// See prepare.h.
#include "verify/prepare.h"

#include "cases/chosen_rows.h"

namespace quire::verify_detail {

Result<Prepared> prepare_rows(Entry entry, Case c, std::vector<std::int64_t> tokens) {
  Result<Reference> expected =
      tokens.empty() ? reference(c.batch, c.cache, c.options) : reference(c.batch, c.cache, c.options, tokens);
  if (!expected.ok()) return expected.status();
  const bool sparse = entry.special == Special::huge_offsets;
  return Prepared{std::move(entry), std::move(c), std::move(expected).value(), std::move(tokens), sparse};
}

Result<Prepared> prepare_case(Entry entry, Case c, std::int64_t budget) {
  // Sums over 2^32 elements are of no concern to a sparse case: its problem is as small as its lengths.
  std::vector<std::int64_t> tokens = cases::choose_rows(entry.line.problem, budget, entry.line.seed);
  return prepare_rows(std::move(entry), std::move(c), std::move(tokens));
}

Result<Prepared> prepare(const Entry& entry, std::int64_t budget) {
  Result<Case> c = make_case(entry.line);
  if (!c.ok()) return c.status();
  if (!apply(entry.special, c.value())) return Status(Code::unsupported, "no address space for a sparse cache");
  return prepare_case(entry, std::move(c).value(), budget);
}

RoundedRows rounded_rows_of(const Target& target) {
  if (!target.rounded_weights) return target.rounded_rows;
  return [](const Case& c) { return std::vector<bool>(static_cast<std::size_t>(c.batch.query.shape[0]), true); };
}

Result<Prepared> with_tolerance(Result<Prepared> prepared, const RoundedRows& rounded) {
  if (!rounded || !prepared.ok()) return prepared;
  cases::allow_rounded_rows(prepared->expected, prepared->c.batch.query.dtype, rounded(prepared->c), prepared->tokens);
  return prepared;
}

}  // namespace quire::verify_detail
