// SPDX-License-Identifier: Apache-2.0
// Laws that every attention output obeys, whatever the scores were. Laws need no oracle and cost one pass over V and the output,
// so that they cover every row of a batch that is too large to compute again.
#pragma once

#include <cstdint>
#include <vector>

#include "diagnose/fault_model.h"
#include "diagnose/observed.h"
#include "quire/tools/diagnose.hpp"

namespace quire::diagnose_detail {

using Law = OutputLaw;
inline constexpr Law kLaws[] = {Law::finite, Law::one_value, Law::hull};
/// A law in Laws::broken.
constexpr std::uint8_t bit(Law law) { return static_cast<std::uint8_t>(1 << static_cast<int>(law)); }

struct Laws {
  std::vector<std::uint8_t> broken;  ///< [num_tokens * num_q_heads] bits of laws
  std::vector<LawFinding> findings;  ///< only laws that are broken somewhere

  bool breaks(std::int64_t row, Law law) const { return (broken[static_cast<std::size_t>(row)] & bit(law)) != 0; }
  bool breaks_any(std::int64_t row) const { return broken[static_cast<std::size_t>(row)] != 0; }
};

/// Looks at every element of the output. The hull of a row is that of its whole request: wider than the truth, never narrower.
/// With a sink, 0 belongs to it, too.
Laws apply_laws(const Facts& facts, const Observed& observed);

}  // namespace quire::diagnose_detail
