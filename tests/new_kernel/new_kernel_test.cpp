// SPDX-License-Identifier: Apache-2.0
// A new kernel is a value and a row: this file defines a CPU and a CUDA kernel, plan/kernels.inc names them, and nothing else in
// the library knows them. Both are planned, explained and listed; the CPU kernel is verified, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "backend/cpu/attend_args.h"
#include "plan/device_lists.h"
#include "plan/device_workspace.h"
#include "quire/plan.hpp"
#include "quire/tools/report.hpp"
#include "quire/tools/verify.hpp"
#include "text/formatted.h"

namespace quire {
namespace plan_detail {
namespace {

std::vector<std::string> refuses_all_but_24_dims(const Problem& problem, const Device& device) {
  std::vector<std::string> reasons;
  if (problem.head_dim != 24) reasons.push_back(formatted("d is {}, expected 24", problem.head_dim));
  if (device.backend == Backend::cuda && device.sm != 90) reasons.push_back("needs sm90");
  return reasons;
}

constexpr CpuTraits kCpuTraits = {.lanes = 16, .direct_rows = 3, .scratch_bytes = [](const Plan& plan) {
                                    return plan.num_threads + rows::cpu_generic.cpu->scratch_bytes(plan) / 64 * 64;
                                  }};

/// One list, whose work the blocks find themselves.
std::vector<DeviceList> new_lists(const Plan& plan) {
  DeviceList list = tall_list(plan, rows::cuda_new, {.short_rows = 12, .tall_rows = 12, .tile_keys = 32, .blocks_per_unit = 3});
  list.role = Role::decode;
  set_capacities(list, plan, {.lowest_tile_rows = 4, .empty_requests = true});
  return {list};
}

constexpr Body kBodies[] = {{.role = Role::decode, .name = "new_decode", .shares = {.least = 5}}};
constexpr GpuTraits kGpuTraits = {.lists = new_lists, .bodies = kBodies};

}  // namespace

constinit const KernelRow rows::cpu_new = {.info = {"cpu_new", Backend::cpu, 0u, "d=24", "a CPU kernel of this test"},
                                           .refuses = refuses_all_but_24_dims,
                                           .why_first = "it is made for 24 dims",
                                           .cpu = &kCpuTraits};
constinit const KernelRow rows::cuda_new = {.info = {"cuda_new", Backend::cuda, 0u, "d=24", "a CUDA kernel of this test"},
                                            .refuses = refuses_all_but_24_dims,
                                            .why_first = "it is made for 24 dims",
                                            .gpu = &kGpuTraits};

}  // namespace plan_detail

/// The launch of cpu_new; serves this program in place of the library's src/backend/cpu/entries.cpp.
namespace cpu {
namespace {

std::atomic<int> attended = 0;  // threads of the pool count here

std::int64_t attend_new(const AttendArgs& args, const WorkItem& item, float* scratch) {
  ++attended;
  return kGenericEntry.attend(args, item, scratch);
}

const KernelEntry kNewEntry = {
    &plan_detail::rows::cpu_new, attend_new,
    [](const AttendArgs& args, const MergeItem& item, float* scratch) { return kGenericEntry.merge(args, item, scratch); }};

}  // namespace

std::span<const KernelEntry* const> kernel_entries() noexcept {
  static constexpr const KernelEntry* kEntries[] = {&kNewEntry, &kGenericEntry};
  return kEntries;
}

}  // namespace cpu

namespace {

using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::Not;

const std::string kLine = "q=bf16 kv=bf16 heads=8:2 page=16 reqs=4x1@2047,9@20 d=";

Problem problem(const char* head_dim) { return parse_problem_line(kLine + head_dim).value().problem; }

TEST(NewKernel, IsListedInItsPlace) {
  ASSERT_GE(kernels().size(), 13u);
  EXPECT_EQ(kernels()[0].name, "cpu_new");
  EXPECT_EQ(kernels()[1].name, "cuda_new");
  EXPECT_EQ(kernels()[2].name, "cpu_amx");
  EXPECT_EQ(kernels().back().name, "hip_generic");
}

TEST(NewKernel, IsPlannedOnTheCpu) {
  const Plan p = plan(problem("24"), find_device("avx2").value()).value();
  EXPECT_EQ(p.kernel, "cpu_new");
  EXPECT_EQ(p.direct_rows, 3);
  EXPECT_THAT(to_string(p), HasSubstr("cpu_new device=avx2"));
  EXPECT_EQ(plan(problem("32"), find_device("avx2").value())->kernel, "cpu_avx2");
  EXPECT_EQ(plan(problem("24"), find_device("avx2").value(), {.kernel = "cpu_avx2"})->kernel, "cpu_avx2");
  const Result<Plan> forced = plan(problem("32"), find_device("avx2").value(), {.kernel = "cpu_new"});
  EXPECT_THAT(forced.status().message(), HasSubstr("cpu_new: d is 32, expected 24"));
}

TEST(NewKernel, IsPlannedOnAGpu) {
  const Plan p = plan(problem("24"), find_device("h200").value()).value();
  EXPECT_EQ(p.kernel, "cuda_new");
  ASSERT_EQ(p.work().lists.size(), 1u);
  const plan_detail::DeviceList& list = p.work().lists[0];
  EXPECT_EQ(list.kernel, p.kernel);
  EXPECT_EQ(list.role, plan_detail::Role::decode);
  EXPECT_EQ(list.tile_rows, 12);
  EXPECT_EQ(list.num_blocks, 3 * 132);
  EXPECT_EQ(list.max_slices, 13 * 4 / 4 + 5 + 2 * list.num_blocks / 2) << "tiles of 4 rows, and parts for all blocks";
  EXPECT_GT(workspace_bytes(p), 0u);
  // Nobody schedules the list, so the call resets its counters, also where parts have a fixed size.
  Problem many_parts = problem("24");
  many_parts.reqs = {{1, 9000, 9001}};
  const Plan invariant = plan(many_parts, find_device("h200").value(), {.batch_invariant = true}).value();
  const plan_detail::DeviceWorkspace w = plan_detail::device_workspace(invariant);
  EXPECT_GT(w.reset_bytes, w.lists[0].parts_done);
  EXPECT_EQ(plan(problem("24"), find_device("sm80").value())->kernel, "cuda_generic");
}

TEST(NewKernel, IsExplained) {
  const Explanation chosen = explain(problem("24"), find_device("avx2").value());
  EXPECT_EQ(chosen.chosen, "cpu_new");
  EXPECT_THAT(chosen.text, HasSubstr("cpu_avx2: takes it too, but cpu_new comes first: it is made for 24 dims"));
  const Explanation refused = explain(problem("32"), find_device("sm90").value());
  EXPECT_THAT(refused.text, HasSubstr("cuda_new: d is 32, expected 24"));
  EXPECT_THAT(explain(problem("24"), find_device("h200").value()).text, HasSubstr("tiles     new_decode: 12 score rows"));
  EXPECT_THAT(refused.chosen, Not(HasSubstr("new")));
}

TEST(NewKernel, IsVerified) {
  VerifyOptions options;
  options.matrices = {};
  options.lines = {"q=f32 kv=fp8_e4m3fn heads=6:2 d=24 page=4 window=70 sinks=1 reqs=17@40,1@2500,2@0 seed=3"};
  const Verdict v = verify(backend_target("cpu_new").value(), options).value();
  EXPECT_EQ(v.verdict, VerifyVerdict::pass) << to_string(v);
  ASSERT_EQ(v.cases.size(), 1u);
  EXPECT_EQ(v.cases[0].kernel, "cpu_new");
  EXPECT_GT(cpu::attended, 0) << "the test's own kernel served it";
}

TEST(NewKernel, NeedsALaunch) {
  if (plan(problem("24"), host_device(), {.kernel = "cpu_avx2"}).status().code() == Code::unsupported) GTEST_SKIP();
  // This program has no launch for the other rows of the table.
  const Verdict v =
      verify(backend_target("cpu_avx2").value(), {.matrices = {}, .power = false, .lines = {kLine + "24 seed=1"}}).value();
  EXPECT_THAT(v.cases, Contains(Field(&CaseResult::reason, HasSubstr("kernel cpu_avx2 of the plan is not in this build"))));
}

}  // namespace
}  // namespace quire
