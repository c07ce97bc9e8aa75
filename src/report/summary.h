// SPDX-License-Identifier: Apache-2.0
// Counts of a verdict, which its text and its JSON both give.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/tools/verify.hpp"

namespace quire::report {

/// Several cases in one line.
struct MatrixSummary {
  std::string name;
  std::int64_t cases = 0, passed = 0, failed = 0, refused = 0;
  std::int64_t num_elements = 0, num_compared = 0;  ///< elements of served cases
  double seconds = 0, worst_ratio = 0;

  void add(const CaseResult& c);
};
/// Returns a summary for each matrix, in the order in which the matrices ran.
std::vector<MatrixSummary> summaries(const Verdict& v);

std::int64_t count(const Verdict& v, CaseStatus status);

/// Planted faults that were noticed, and all that could have been.
std::int64_t killed(const std::vector<MutantResult>& power);
std::int64_t could_be_killed(const std::vector<MutantResult>& power);

}  // namespace quire::report
