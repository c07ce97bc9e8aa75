// SPDX-License-Identifier: Apache-2.0
// The suite's power: every planted fault goes through the checks that the target went through, until one of them notices it.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "quire/verify.hpp"
#include "verify/matrix.h"
#include "verify/prepare.h"

namespace quire::conformance {

/// A case on which faults are planted; `asked`: the target was judged on it (it did not refuse).
struct PowerCase {
  Entry entry;
  bool asked = true;
};

struct PowerOptions {
  std::set<std::string> asked;    ///< checks that the target was asked
  std::set<std::string> skipped;  ///< checks that it could not be asked; they count as not asked
  int num_threads = 2;
  RoundedRows rounded_rows;                                             ///< judged by the tolerance that the target was judged by
  std::function<bool(std::size_t killed, std::size_t total)> progress;  ///< false stops
};

/// One result per fault, in the order of the catalogue. Empty if stopped.
std::vector<MutantResult> measure_power(std::vector<PowerCase> cases, const PowerOptions& options);

}  // namespace quire::conformance
