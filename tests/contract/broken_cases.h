// SPDX-License-Identifier: Apache-2.0
// Mutations, one per way to break a rule, each with the one finding that it must give.
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

/// Cases that break one rule each, at least one for every rule.
const std::vector<BrokenCase>& broken_cases();

}  // namespace quire::test
