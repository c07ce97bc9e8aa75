// SPDX-License-Identifier: Apache-2.0
// The verdict as text for a terminal and as JSON (verify.md). Pure functions of the verdict.
#pragma once

#include <string>

#include "quire/verify.hpp"

namespace quire::conformance {

std::string text_of(const Verdict& v);
std::string json_of(const Verdict& v);

/// One line per matrix.
struct MatrixSummary {
  std::string name;
  std::int64_t cases = 0, passed = 0, failed = 0, refused = 0;
  std::int64_t num_elements = 0, num_compared = 0;
  double seconds = 0, worst_ratio = 0;
};
std::vector<MatrixSummary> summaries(const Verdict& v);

}  // namespace quire::conformance
