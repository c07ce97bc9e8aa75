// SPDX-License-Identifier: Apache-2.0
// Laws that every attention output obeys, whatever the scores were. They need no oracle and cost one pass over V and the output,
// so they cover every row of a batch that is too large to compute again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/observed.h"
#include "faults/model.h"

namespace quire::cause {

/// Bits: which laws a (row, head) breaks.
enum Law : std::uint8_t {
  kFinite = 1,  ///< NaN or infinity, and every V row that the request may read is finite
  kFill = 2,    ///< all dims hold one value: what the buffer was filled with, or the 0 of a row that sees no key
  kHull = 4,    ///< a dim lies outside [min, max] of the V rows that the request may read: never computed from this cache
};
inline constexpr Law kLaws[] = {kFinite, kFill, kHull};
const char* name(Law law);

/// What the broken rows of one law have in common.
struct LawFinding {
  Law law = kFinite;
  std::vector<std::int64_t> tokens;  ///< rows with at least one head that breaks it, ascending
  std::string text;                  ///< "row 5336, head 0, dim 12 holds 1.69; the values it may average lie in [-0.001, 0.001]"
};

struct Laws {
  std::vector<std::uint8_t> broken;  ///< [num_tokens * num_q_heads] bits of Law
  std::vector<LawFinding> findings;  ///< only laws that are broken somewhere

  bool breaks(std::int64_t row, int laws) const { return (broken[static_cast<std::size_t>(row)] & laws) != 0; }
};

/// Looks at every element of the output. The hull of a row is that of its whole request: wider than the truth, never narrower.
/// With a sink, 0 belongs to it, too.
Laws apply_laws(const fault::Facts& facts, const Observed& observed);

}  // namespace quire::cause
