// SPDX-License-Identifier: Apache-2.0
// A geometry made into a case, planted and judged.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "faults/geometries.h"
#include "quire/problem.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"
#include "quire/tools/faults.hpp"
#include "semantics/dtype.h"

namespace quire::test {

inline Case made(const std::string& line) {
  const Result<ProblemLine> parsed = parse_problem_line(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  Result<Case> c = make_case(parsed.value());
  EXPECT_TRUE(c.ok()) << c.status().message();
  return std::move(c).value();
}

/// Output and lse hold NaN again, as nobody has written them.
inline void clear_output(Case& c) {
  const Batch& b = c.batch;
  for (std::int64_t i = 0; i < b.output.num_elements(); ++i) semantics::store(b.output.data, b.output.dtype, i, NAN);
  for (std::int64_t i = 0; i < b.lse.num_elements(); ++i) semantics::store(b.lse.data, b.lse.dtype, i, NAN);
}

}  // namespace quire::test
