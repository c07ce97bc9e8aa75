// SPDX-License-Identifier: Apache-2.0
// The hazard suite (docs/reference/testing.md): the shapes and types that `quire verify` asks of anybody, run here on every
// kernel.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "quire/capture.hpp"
#include "quire/problem.hpp"
#include "verify/matrix.h"

namespace quire::conformance {

/// Keeps GoogleTest from printing the bytes of a parameter.
inline void PrintTo(const Hazard& hazard, std::ostream* out) { *out << hazard.name; }

}  // namespace quire::conformance

namespace quire::test {

using conformance::Hazard;
using conformance::hazard_line;
using conformance::hazards;
using conformance::type_combinations;

/// StalePagesLeftOfWindow: the lines of the matrix.
inline std::vector<ProblemLine> stale_page_lines() {
  std::vector<ProblemLine> lines;
  for (const conformance::Entry& entry : conformance::hazard_matrix(/*quick=*/true))
    if (entry.special == conformance::Special::stale_pages) lines.push_back(entry.line);
  return lines;
}

}  // namespace quire::test
