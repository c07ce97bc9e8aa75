// SPDX-License-Identifier: Apache-2.0
// Faults switched on at run time in our own kernels (src/backend/cpu/planted.h): the suite must catch each, on every instruction
// set. This program holds its own copy of the kernels; the last tests show that the library that is shipped knows nothing of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "injection/plant.h"
#include "kernels/host_kernels.h"
#include "kernels/judge.h"

namespace quire::cpu {
Planted planted = Planted::none;
}

namespace quire::test {
namespace {

class InjectedFaults : public testing::TestWithParam<Injected> {};

ProblemLine line_of(const Injected& injected) {
  const Result<ProblemLine> line = parse_problem_line(injected.line);
  EXPECT_TRUE(line.ok()) << line.status().message();
  return line.ok() ? line.value() : ProblemLine{};
}

TEST_P(InjectedFaults, AreCaughtOnEveryKernelAndOnlyWhileTheyAreOn) {
  for (const std::string& kernel : host_kernels()) {
    const ProblemLine line = as_taken_by(kernel, line_of(GetParam()));
    const std::vector<std::string> clean = judge(line, kernel_under_test(kernel));
    EXPECT_TRUE(clean.empty()) << kernel << " without a fault: " << report(line, clean);
    const Plant plant(GetParam().fault);
    const std::vector<std::string> findings = judge(line, kernel_under_test(kernel));
    EXPECT_FALSE(findings.empty()) << kernel << " " << GetParam().text << ", and nothing notices on " << to_string(line);
    if (!findings.empty()) RecordProperty(kernel, findings.front());
  }
}

INSTANTIATE_TEST_SUITE_P(, InjectedFaults, testing::ValuesIn(kInjected), [](const auto& test) { return test.param.id; });

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The middle of the mangled name of cpu::planted. Written backwards: this program must hold it as a symbol only.
std::string symbol() {
  const std::string backwards = "detnalp7upc3eriuq";
  return {backwards.rbegin(), backwards.rend()};
}

TEST(TheShippedLibrary, HasNoFaultToSwitchOn) {
  EXPECT_EQ(bytes_of(QUIRE_LIBRARY).find(symbol()), std::string::npos) << QUIRE_LIBRARY << " was built with QUIRE_PLANT_FAULTS";
}

TEST(TheShippedLibrary, WouldBeSeenToHaveOne) { EXPECT_NE(bytes_of(QUIRE_THIS_PROGRAM).find(symbol()), std::string::npos); }

TEST(TheListOfInjectedFaults, IsTheOneInDocsTesting) {
  std::istringstream page(bytes_of(QUIRE_SOURCE_DIR "/docs/reference/testing.md"));
  std::string documented, expected;
  for (std::string row; std::getline(page, row);)
    if (row.rfind("- `", 0) == 0) documented += row + "\n";
  for (const Injected& injected : kInjected) expected += fmt::format("- `{}`: {}\n", injected.id, injected.text);
  EXPECT_EQ(documented, expected) << "docs/reference/testing.md, list of injected faults";
}

TEST(TheListOfInjectedFaults, HoldsEveryFaultOfTheKernels) {
  EXPECT_EQ(std::size(kInjected), static_cast<std::size_t>(cpu::Planted::window_right_one_long));
}

}  // namespace
}  // namespace quire::test
