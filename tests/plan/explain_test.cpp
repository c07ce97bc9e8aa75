// SPDX-License-Identifier: Apache-2.0
// explain(): goldens for pretend devices, and the laws that tie it to the table and to plan().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "plan/select.h"
#include "quire/plan.hpp"
#include "support/golden.h"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Problem problem_of_line(const char* line) {
  const Result<ProblemLine> parsed = parse_problem_line(line);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed->problem;
}

Device device_named(const char* name) { return find_device(name).value(); }

// golden file stem, problem line
const std::pair<const char*, const char*> kProblems[] = {
    {"decode", "q=bf16 kv=bf16 heads=32:8 d=128 page=16 layout=nhd reqs=64x1@2048"},
    {"prefill", "q=f16 kv=f16 heads=16:16 d=64 page=32 layout=hnd reqs=1x4096"},
    {"mixed_fp8_window",
     "q=bf16 kv=fp8_e4m3fn heads=64:1 d=128 page=16 layout=packed reqs=1x880@430,1x1@929 window=256 cap=30 alibi=1 sinks=1 "
     "lse=1"},
    {"mla", "q=bf16 kv=bf16 heads=128:1 d=576 page=64 reqs=64x1@8191 dv=512"},
    {"odd_sizes", "q=f32 kv=f32 heads=17:17 d=7 page=5 layout=nhd reqs=1x0@3,3x2@1"},
};

TEST(Explain, GoldensForEveryDevice) {
  for (const auto& [stem, line] : kProblems) {
    std::string text;
    for (const Device& device : known_devices()) text += explain(problem_of_line(line), device).text + "\n";
    test::expect_golden(std::string("tests/plan/goldens/explain_") + stem + ".txt", text);
  }
}

// Kernels of several bodies, on a product whose ceilings were measured.
TEST(Explain, GoldenOfFloorsOnAnH100) {
  std::string text;
  for (const char* line :
       {"q=bf16 kv=fp8_e4m3fn heads=32:8 d=128 page=16 reqs=1x1@8191",
        "q=bf16 heads=128:1 d=576 dv=512 latent=1 page=64 reqs=64x1@8191",
        "q=bf16 kv=bf16 heads=32:8 d=128 page=16 cap=30 reqs=8x1@8191", "q=bf16 kv=nvfp4 heads=32:8 d=128 page=16 reqs=4x1@2047",
        "q=bf16 heads=32:8 d=128 page=16 tree=64 reqs=4x64@960"})
    text += explain(problem_of_line(line), device_named("h100")).text + "\n";
  test::expect_golden("tests/plan/goldens/explain_floors_h100.txt", text);
}

TEST(Explain, AgreesWithPlan) {
  for (const auto& [stem, line] : kProblems) {
    for (const Device& device : known_devices()) {
      const Explanation e = explain(problem_of_line(line), device);
      const Result<Plan> planned = plan(e.problem, device);
      EXPECT_EQ(e.chosen.empty(), !planned.ok()) << stem << ' ' << device.name;
      if (!planned.ok()) continue;
      EXPECT_EQ(e.chosen, planned->kernel);
      EXPECT_EQ(e.plan_line, to_string(planned.value()));
      EXPECT_THAT(e.text, AllOf(HasSubstr(e.chosen), HasSubstr(e.plan_line)));
    }
  }
}

TEST(Explain, EveryRowIsChosenOrHasAReason) {
  for (const Device& device : known_devices()) {
    const Explanation e = explain(problem_of_line(kProblems[0].second), device);
    std::set<std::string> named = {e.chosen};
    for (const Refusal& r : e.refusals) {
      EXPECT_FALSE(r.reason.empty());
      EXPECT_NE(r.kernel, e.chosen);
      // Kernels of other backends share one line.
      EXPECT_THAT(e.text, HasSubstr(r.reason.starts_with("is a ") ? r.kernel : r.reason));
      named.insert(r.kernel);
    }
    const std::size_t folded = e.text.find(": kernels of other backends\n");
    ASSERT_NE(folded, std::string::npos) << device.name;
    EXPECT_EQ(e.text.find(": kernels of other backends\n", folded + 1), std::string::npos) << device.name;
    EXPECT_THAT(e.text, Not(HasSubstr("is a c"))) << device.name;
    for (const Kernel& kernel : kernels())
      EXPECT_EQ(named.count(std::string(kernel.name)), 1u) << kernel.name << ' ' << device.name;
  }
}

TEST(Explain, ListsEveryFailedCondition) {
  for (const Device& device : known_devices()) {
    const Explanation e = explain(problem_of_line(kProblems[0].second), device);
    for (const plan_detail::KernelRow* const each : plan_detail::kernel_rows()) {
      const plan_detail::KernelRow& row = *each;
      if (row.info.name == e.chosen) continue;
      std::vector<std::string> given;
      for (const Refusal& r : e.refusals)
        if (r.kernel == row.info.name) given.push_back(r.reason);
      const std::vector<std::string> reasons = plan_detail::refusals_of(row, e.problem, device);
      if (reasons.empty()) continue;
      EXPECT_EQ(given, reasons) << row.info.name << ' ' << device.name;
    }
  }
}

TEST(Explain, ForcedKernelIsChosenOrSaysWhyNot) {
  const Problem p = problem_of_line(kProblems[0].second);
  for (const Kernel& kernel : kernels()) {
    const Explanation e =
        explain(p, device_named("avx512"), {.kernel = std::string(kernel.name), .batch_invariant = false, .num_threads = 0});
    if (e.chosen.empty()) {
      EXPECT_THAT(e.text, HasSubstr("none: ")) << kernel.name;
    } else {
      EXPECT_EQ(e.chosen, kernel.name);
    }
  }
  const Explanation e = explain(p, device_named("scalar"), {.kernel = "cpu_avx512", .batch_invariant = false, .num_threads = 0});
  EXPECT_EQ(e.chosen, "");
  EXPECT_THAT(e.text, HasSubstr("cpu_avx512: needs AVX-512"));
  EXPECT_THAT(e.text, HasSubstr("cpu_generic: takes it too, but cpu_avx512 is forced"));
}

TEST(Explain, UnknownKernelAndBrokenProblemAreSaid) {
  Problem p = problem_of_line(kProblems[0].second);
  EXPECT_THAT(explain(p, device_named("avx2"), {.kernel = "warp_drive", .batch_invariant = false, .num_threads = 0}).text,
              HasSubstr("no kernel of that name"));
  p.num_kv_heads = 3;
  const Explanation e = explain(p, device_named("avx2"));
  EXPECT_EQ(e.chosen, "");
  EXPECT_THAT(e.refusals, IsEmpty());
  EXPECT_THAT(e.text, HasSubstr("not a positive multiple of num_kv_heads 3"));
}

}  // namespace
}  // namespace quire
