// SPDX-License-Identifier: Apache-2.0
// One mutation per way to break a rule, with the one finding it must give.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "contract/small_batch.h"

namespace quire::test {

struct BrokenCase {
  std::string rule;
  std::string message;  ///< the whole text; one '*' may stand for an address
  /// check() looks no deeper than `limit`; append and merge calls have one depth.
  std::function<Findings(Depth limit)> run;
  bool is_check = true;
};

/// At least one case for every rule.
const std::vector<BrokenCase>& broken_cases();

}  // namespace quire::test
