// SPDX-License-Identifier: Apache-2.0
// The verdict of `quire run`: each fault that the library is never seen to commit is planted here and must fail the run.
#include "../cli/outcome.h"

#include <gtest/gtest.h>

namespace quire::cli {
namespace {

Comparison verdict(bool ok) {
  Comparison comparison;
  comparison.ok = ok;
  return comparison;
}

Outcome passing() {
  Outcome outcome;
  outcome.rows = {{"cpu_avx512", 20}, {"cpu_generic", 8}};
  outcome.rows_expected = 28;
  outcome.ours = verdict(/*ok=*/true);
  return outcome;
}

TEST(Outcome, Passes) { EXPECT_TRUE(passing().ok()); }

TEST(Outcome, RowsMissingOrWrittenTwiceFail) {
  for (const std::int64_t rows : {0, 7, 9}) {
    Outcome outcome = passing();
    outcome.rows[1].rows = rows;
    EXPECT_FALSE(outcome.ok()) << rows;
  }
}

TEST(Outcome, DifferentBitsFail) {
  Outcome outcome = passing();
  outcome.same_bits = false;
  EXPECT_FALSE(outcome.ok());
}

TEST(Outcome, OursOrObservedOverToleranceFails) {
  Outcome outcome = passing();
  outcome.observed = verdict(/*ok=*/false);
  EXPECT_FALSE(outcome.ok());
  outcome.observed = verdict(/*ok=*/true);
  EXPECT_TRUE(outcome.ok());
  outcome.ours = verdict(/*ok=*/false);
  EXPECT_FALSE(outcome.ok());
}

}  // namespace
}  // namespace quire::cli
