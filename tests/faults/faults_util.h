// SPDX-License-Identifier: Apache-2.0
// A geometry made into a case, planted and judged.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "faults/geometries.h"
#include "quire/capture.hpp"
#include "quire/diagnose.hpp"
#include "quire/faults.hpp"
#include "quire/problem.hpp"
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
