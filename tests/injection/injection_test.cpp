// SPDX-License-Identifier: Apache-2.0
// Faults switched on at run time in our own kernels: the suite must catch each, on every instruction set, and nothing else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>

#include "injection/injected.h"
#include "kernels/host_kernels.h"
#include "kernels/judge.h"
#include "quire/tools/faults.hpp"
#include "semantics/page_walk.h"

namespace quire::test {
namespace {

class InjectedFaults : public testing::TestWithParam<Injected> {};

ProblemLine line_of(const Injected& injected) {
  const Result<ProblemLine> line = parse_problem_line(injected.line);
  EXPECT_TRUE(line.ok()) << line.status().message();
  return line.ok() ? line.value() : ProblemLine{};
}

/// V of the last key but one of request 0 holds a NaN if the fault shows there alone: the last rows see it. The cache is nhd.
Case case_of(const Injected& injected, const ProblemLine& line) {
  Case c = made(line);
  if (!injected.by_nan) return c;
  const std::int64_t key = line.problem.reqs[0].seq_len() - 2, size = page_size(c.cache);
  const auto& s = c.cache.v.stride;
  const std::int64_t page = semantics::index_row(c.batch.block_table, 0)[key / size];
  semantics::store(c.cache.v.data, c.cache.v.dtype, page * s[0] + key % size * s[1] + s[2] + 3 * s[3], NAN);
  return c;
}

TEST_P(InjectedFaults, AreCaughtOnEveryKernelAndOnlyWhileTheyAreOn) {
#ifdef __SANITIZE_THREAD__
  const std::string_view id = GetParam().id;
  if (id == "row_padding_written" || id == "merged_at_first_part") GTEST_SKIP() << "the planted bug is a race between threads";
#endif
  for (const std::string& kernel : host_kernels()) {
    const ProblemLine own = line_of(GetParam());
    if (own.problem.has_token_scales() && !takes(kernel, own.problem)) continue;  // refused, with a reason
    const ProblemLine line = as_taken_by(kernel, own);
    const std::vector<std::string> clean = judge(case_of(GetParam(), line), kernel_under_test(kernel));
    EXPECT_TRUE(clean.empty()) << kernel << " without a fault: " << report(line, clean);
    const Plant plant(GetParam());
    const std::vector<std::string> findings = judge(case_of(GetParam(), line), kernel_under_test(kernel));
    EXPECT_FALSE(findings.empty()) << kernel << " with " << GetParam().id << ", and nothing notices on " << to_string(line);
    if (!findings.empty()) RecordProperty(kernel, findings.front());
  }
}

INSTANTIATE_TEST_SUITE_P(, InjectedFaults, testing::ValuesIn(kInjected), [](const auto& test) { return test.param.id; });

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string text_of(const Injected& injected) {
  for (const FaultInfo& fault : faults())
    if (fault.id == injected.id) return fault.text;
  return injected.text;
}

TEST(TheListOfInjectedFaults, IsTheOneInDocsTesting) {
  std::istringstream page(bytes_of(QUIRE_SOURCE_DIR "/docs/reference/testing.md"));
  std::string documented, expected;
  for (std::string row; std::getline(page, row);)
    if (row.rfind("- `", 0) == 0) documented += row + "\n";
  for (const Injected& injected : kInjected) expected += fmt::format("- `{}`: {}\n", injected.id, text_of(injected));
  EXPECT_EQ(documented, expected) << "docs/reference/testing.md, list of injected faults";
}

}  // namespace
}  // namespace quire::test
