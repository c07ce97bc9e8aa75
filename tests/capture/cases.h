// SPDX-License-Identifier: Apache-2.0
// The case files of tests/cases, one per hazard, for any test that wants to run over them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "quire/problem.hpp"

namespace quire::test {

/// Hazards of docs/design.md, in its order; tests/cases/NAME.txt holds the lines of each.
inline const std::vector<std::string>& hazards() {
  static const std::vector<std::string> names = {
      "LastPagePartial",  "ChunkStartsMidPage",  "WindowHidesFirstPage", "WindowOne",   "NoVisibleKey",
      "QueryLenZero",     "PaddedRows",          "SharedPrefixPages",    "PageTailNaN", "OutOfWindowNaN",
      "TablePastEndHuge", "QueryLongerThanTile", "OddHeadDim",           "OddGroup",    "OddPage",
      "HugeOffsets",      "NegativeSlopes",      "SinkDominates",        "Fp8Extremes", "PeakySoftmax",
      "SpeculativeRows",  "CachedLenBetween"};
  return names;
}

/// All lines of tests/cases/NAME.txt; a file that is missing, empty or wrong fails the test.
inline std::vector<ProblemLine> load_cases(const std::string& name) {
  std::ifstream file(std::string(QUIRE_SOURCE_DIR) + "/tests/cases/" + name + ".txt");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Result<std::vector<ProblemLine>> lines = parse_problem_lines(text);
  EXPECT_TRUE(lines.ok()) << name << ".txt: " << lines.status().message();
  if (!lines.ok() || lines.value().empty()) {
    ADD_FAILURE() << name << ".txt: no cases";
    return {};
  }
  return std::move(lines).value();
}

}  // namespace quire::test
