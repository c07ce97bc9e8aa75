// SPDX-License-Identifier: Apache-2.0
// Faults switched on in our own kernels, and what diagnose() makes of the output: it sees nothing but the batch and the numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "injection/injected.h"
#include "kernels/host_kernels.h"
#include "kernels/judge.h"
#include "quire/tools/faults.hpp"

namespace quire::test {
namespace {

bool in_catalogue(const std::string& id) {
  for (const FaultInfo& fault : faults())
    if (fault.id == id) return true;
  return false;
}

/// The case of the injected fault's line, with what the preferred kernel makes of it as the observed output.
Case observed_from(const Injected& injected) {
  const ProblemLine line = parse_problem_line(injected.line).value();
  const std::string kernel = preferred_kernel(line.problem);
  Result<Case> c = make_case(line);
  EXPECT_TRUE(c.ok()) << c.status().message();
  const Plant plant(injected);
  std::int64_t rows = 0;
  const Status status = kernel_under_test(kernel)(c.value(), 4, rows);
  EXPECT_TRUE(status.ok()) << status.message();
  c->observed = c->batch.output;
  c->observed_lse = c->batch.lse;
  return std::move(c).value();
}

std::string first_three(const Diagnosis& d) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, d.suspicions.size()); ++i)
    text += fmt::format("\n  {} {:.3f} {}", d.suspicions[i].fault, d.suspicions[i].explained, d.suspicions[i].detail);
  return text;
}

class DiagnosedInjection : public testing::TestWithParam<Injected> {};

TEST_P(DiagnosedInjection, IsNeverCalledRightAndNamedIfTheCatalogueHasIt) {
  const Result<Diagnosis> d = diagnose(observed_from(GetParam()));
  ASSERT_TRUE(d.ok()) << d.status().message();
  EXPECT_TRUE(d->verdict == DiagnosisVerdict::cause_found || d->verdict == DiagnosisVerdict::mechanism_likely ||
              d->verdict == DiagnosisVerdict::unknown_cause)
      << name(d->verdict);
  if (!in_catalogue(GetParam().id)) return;
  const auto rank =
      std::find_if(d->suspicions.begin(), d->suspicions.end(), [&](const Suspicion& s) { return s.fault == GetParam().id; }) -
      d->suspicions.begin();
  EXPECT_LT(rank, 3) << first_three(d.value());
}

/// Those that finite numbers of an output can show: not a product of 0 and NaN, nor a byte behind a row.
std::vector<Injected> shown_by_numbers() {
  std::vector<Injected> list(std::begin(kInjected), std::end(kInjected));
  std::erase_if(list, [](const Injected& i) { return i.by_nan || i.id == std::string_view("row_padding_written"); });
  return list;
}
INSTANTIATE_TEST_SUITE_P(, DiagnosedInjection, testing::ValuesIn(shown_by_numbers()),
                         [](const auto& test) { return test.param.id; });

}  // namespace
}  // namespace quire::test
