// SPDX-License-Identifier: Apache-2.0
// The hazard suite (docs/reference/testing.md): the shapes and types that `quire verify` asks of anybody, run here on every
// kernel.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "quire/problem.hpp"
#include "quire/tools/capture.hpp"
#include "verify/matrix.h"

namespace quire::verify_detail {

/// Keeps GoogleTest from printing the bytes of a parameter.
inline void PrintTo(const Hazard& hazard, std::ostream* out) { *out << hazard.name; }

}  // namespace quire::verify_detail

namespace quire::test {

using verify_detail::Hazard;
using verify_detail::hazard_line;
using verify_detail::hazards;
using verify_detail::type_combinations;

/// StalePagesLeftOfWindow: the lines of the matrix.
inline std::vector<ProblemLine> stale_page_lines() {
  std::vector<ProblemLine> lines;
  for (const verify_detail::Entry& entry : verify_detail::hazard_matrix(/*quick=*/true))
    if (entry.special == verify_detail::Special::stale_pages) lines.push_back(entry.line);
  return lines;
}

}  // namespace quire::test
