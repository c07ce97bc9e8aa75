// SPDX-License-Identifier: Apache-2.0
// attend() through the HIP host code: every hazard on each of the fake devices and for both rows of the kernel table, against the
// fp64 reference; broken lengths and tables are reported and nothing is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hip/on_fake.h"
#include "kernels/broken_batches.h"
#include "kernels/hazard_cases.h"
#include "simt/matrix_types.h"
#include "verify/guarded.h"

namespace quire::test {
namespace {

constexpr const char* kNames[] = {"gfx942", "gfx1100", "gfx1201"};
using DeviceAndHazard = std::tuple<int, Hazard>;

std::string name_of(const testing::TestParamInfo<DeviceAndHazard>& test) {
  return std::string(kNames[std::get<0>(test.param)]) + "_" + std::get<1>(test.param).name;
}

class HipAttend : public testing::TestWithParam<DeviceAndHazard> {
 protected:
  void SetUp() override {
    ASSERT_FALSE(gpu_devices().empty());
    set_fake_device(device());
  }
  int device() const { return std::get<0>(GetParam()); }
  const Hazard& hazard() const { return std::get<1>(GetParam()); }
  /// Types take turns over hazards and devices.
  std::size_t turn() const {
    std::size_t turn = static_cast<std::size_t>(device());
    for (const char c : hazard().name) turn += static_cast<std::size_t>(c);
    return turn;
  }
  void judge_line(const ProblemLine& line, const std::string& kernel) const {
    const std::vector<std::string> findings = judge(line, on_fake({.kernel = kernel, .batch_invariant = turn() % 5 == 0}));
    EXPECT_TRUE(findings.empty()) << kNames[device()] << " " << kernel << "\n" << report(line, findings);
  }
};

TEST_P(HipAttend, Generic) {
  const std::vector<std::string>& types = type_combinations();
  judge_line(hazard_line(types[turn() % types.size()], hazard().shapes.front(), turn()), "hip_generic");
}

TEST_P(HipAttend, Matrix) {
  constexpr int kDims[] = {64, 128, 64, 256};
  const std::vector<std::string>& types = matrix_types();
  const std::string shape = with_head_dim(hazard().shapes.back(), kDims[turn() % 4]);
  const ProblemLine line = hazard_line(types[turn() % types.size()], shape, turn());
  if (!line.problem.is_causal_at_end()) GTEST_SKIP() << "hip_matrix takes causal rows at the end of their keys";
  judge_line(line, "hip_matrix");
}

INSTANTIATE_TEST_SUITE_P(, HipAttend, testing::Combine(testing::Values(0, 1, 2), testing::ValuesIn(hazards())), name_of);

/// The device finds what no host has read, and says it in the host's words.
TEST(HipCall, BrokenBatchesAreReportedAndLeaveTheOutputAsItWas) {
  ASSERT_FALSE(gpu_devices().empty());
  set_fake_device(0);
  for (const Mutation& mutation : mutations()) {
    Case c = without_slots(kLineToBreak);
    mutation.apply(c);
    conformance::Guarded output(c.batch.output, conformance::Spread::contiguous);
    c.batch.output = output.view;
    std::int64_t rows = 0;
    const Status status = attend_on_fake(c, {.kernel = "hip_generic"}, rows);
    EXPECT_EQ(status.rule(), mutation.rule) << status.message();
    EXPECT_EQ(output.take(), conformance::fill_pattern(c.batch.output.dtype, c.batch.output.num_elements())) << mutation.rule;
  }
}

/// A case there, planned, with a workspace; `set_page` writes block_table[0][0] as an engine's kernel would between replays.
struct Replayed {
  Case c =
      make_case(parse_problem_line("q=bf16 kv=bf16 heads=4:2 d=64 page=16 reqs=3@20,1@70,2x0 lse=1 pad=2:zero").value()).value();
  conformance::DeviceCase there = conformance::DeviceCase::upload(c, Memory::hip).value();
  Plan planned = plan(there.batch(), there.cache(), there.options()).value();
  conformance::DeviceBytes memory = there.poisoned(workspace_bytes(planned)).value();
  std::span<std::byte> workspace{memory.data(), workspace_bytes(planned)};
  std::int32_t right = static_cast<const std::int32_t*>(c.batch.block_table.data)[0];

  void set_page(std::int32_t page) {
    ASSERT_TRUE(device::runtime_of(Memory::hip)->copy_to_device(there.batch().block_table.data, &page, sizeof page).ok());
  }
  void replay(const AttendOptions& options = {}) {
    const Status s = attend(planned, there.batch(), there.cache(), there.options(), workspace, options);
    ASSERT_TRUE(s.ok()) << s.message();
  }
  Status status() { return attend_status(planned, there.batch(), there.cache(), there.options(), workspace); }
};

/// Nobody asks after the broken replay; clean ones follow, and the one who asks then hears of it, once.
TEST(HipReplay, ARefusedCallIsHeardAfterCleanOnes) {
  ASSERT_FALSE(gpu_devices().empty());
  set_fake_device(0);
  Replayed r;
  for (const int broken : {1, 3}) {
    for (int i = 0; i < broken; ++i) r.set_page(-1), r.replay();
    r.set_page(r.right);
    for (int i = 0; i < 2; ++i) r.replay();
    const Status heard = r.status();
    EXPECT_EQ(heard.code(), Code::contract_violation);
    EXPECT_THAT(heard.message(), testing::HasSubstr(broken == 1 ? "1 call with this workspace" : "3 calls with this workspace"));
    EXPECT_TRUE(r.status().ok()) << r.status().message();
    r.replay();
    EXPECT_TRUE(r.status().ok()) << r.status().message();
  }
}

/// The last call's rule is told first; what was before it is told when the last call is clean.
TEST(HipReplay, TheLastCallIsToldInItsOwnWords) {
  ASSERT_FALSE(gpu_devices().empty());
  set_fake_device(0);
  Replayed r;
  r.set_page(-1);
  r.replay();
  r.replay();
  EXPECT_EQ(r.status().rule(), "Q-T03");
  EXPECT_EQ(r.status().rule(), "Q-T03") << "the last call is told as often as one asks";
  r.set_page(r.right);
  r.replay();
  EXPECT_THAT(r.status().message(), testing::HasSubstr("1 call with this workspace"));
  EXPECT_TRUE(r.status().ok());
}

TEST(HipReplay, RowsOfARefusedCallAreNaNIfAsked) {
  ASSERT_FALSE(gpu_devices().empty());
  set_fake_device(0);
  Replayed r;
  r.replay({.nan_if_refused = true});
  ASSERT_TRUE(r.status().ok()) << r.status().message();
  ASSERT_TRUE(r.there.download(r.c).ok());
  const Comparison right = compare(r.c.batch.output, r.c.batch.lse, reference(r.c.batch, r.c.cache, r.c.options).value());
  EXPECT_TRUE(right.ok) << right.text;
  r.set_page(-1);
  r.replay({.nan_if_refused = true});
  ASSERT_TRUE(r.there.download(r.c).ok());
  for (const Tensor* t : {&r.c.batch.output, &r.c.batch.lse})
    for (std::int64_t i = 0; i < t->num_elements(); ++i) ASSERT_TRUE(std::isnan(semantics::load(t->data, t->dtype, i))) << i;
}

/// Whatever is current: the call goes where its tensors are, and leaves current what was.
TEST(HipCall, GoesToTheDeviceOfItsTensors) {
  Case c = make_case(parse_problem_line("q=bf16 kv=bf16 heads=4:2 d=64 page=16 reqs=3@20,1@70").value()).value();
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(expected.ok());
  set_fake_device(1);
  const auto there = conformance::DeviceCase::upload(c, Memory::hip);
  ASSERT_TRUE(there.ok());
  const Result<Plan> planned = plan(there->batch(), there->cache(), there->options());
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->device.name, "gfx1100");
  const auto memory = there->poisoned(workspace_bytes(planned.value()));
  ASSERT_TRUE(memory.ok());
  const std::span<std::byte> workspace(memory->data(), workspace_bytes(planned.value()));
  set_fake_device(0);
  const Status given = attend(planned.value(), there->batch(), there->cache(), there->options(), workspace);
  ASSERT_TRUE(given.ok()) << given.message();
  EXPECT_EQ(fake_device(), 0);
  const Status done = attend_status(planned.value(), there->batch(), there->cache(), there->options(), workspace);
  EXPECT_TRUE(done.ok()) << done.message();
  ASSERT_TRUE(there->download(c).ok());
  const Comparison comparison = compare(c.batch.output, c.batch.lse, expected.value());
  EXPECT_TRUE(comparison.ok) << comparison.text;
}

/// Device addresses are compared like any others; nothing is enqueued.
TEST(HipCall, AWorkspaceThatSharesMemoryWithATensorIsRefused) {
  ASSERT_FALSE(gpu_devices().empty());
  set_fake_device(0);
  const Case c = make_case(parse_problem_line("q=bf16 kv=bf16 heads=4:2 d=64 page=16 reqs=3@20,1@70 lse=1").value()).value();
  const auto there = conformance::DeviceCase::upload(c, Memory::hip);
  ASSERT_TRUE(there.ok());
  const Result<Plan> planned = plan(there->batch(), there->cache(), there->options());
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const auto memory = there->poisoned(workspace_bytes(planned.value()));
  ASSERT_TRUE(memory.ok());
  const std::span<std::byte> workspace(memory->data(), workspace_bytes(planned.value()));
  for (Tensor Batch::* tensor : {&Batch::output, &Batch::query, &Batch::lse, &Batch::block_table}) {
    Batch batch = there->batch();
    (batch.*tensor).data = workspace.data() + 256;
    for (const auto call : {&attend, &attend_status}) {
      const Status status = call(planned.value(), batch, there->cache(), there->options(), workspace, {});
      EXPECT_EQ(status.rule(), "Q-M37") << status.message();
    }
  }
}

TEST(HipCall, PlansOfOtherMemoriesAreRefused) {
  const Case c = make_case(parse_problem_line("q=f16 kv=f16 heads=2:1 d=64 page=16 reqs=1@5").value()).value();
  ASSERT_FALSE(gpu_devices().empty());
  set_fake_device(0);
  const auto there = conformance::DeviceCase::upload(c, Memory::hip);
  ASSERT_TRUE(there.ok());
  std::vector<std::byte> none;
  const Result<Plan> here = plan(c.batch, c.cache, c.options);
  ASSERT_TRUE(here.ok());
  EXPECT_THAT(attend(here.value(), there->batch(), there->cache(), there->options(), none).message(),
              testing::HasSubstr("the plan was made for the cpu device"));
  const Result<Plan> pretended = plan(problem_of(c.batch, c.cache, c.options), find_device("gfx942").value());
  ASSERT_TRUE(pretended.ok());
  EXPECT_THAT(attend(pretended.value(), there->batch(), there->cache(), there->options(), none).message(),
              testing::HasSubstr("the plan was made for the pretended device gfx942"));
  EXPECT_THAT(attend(pretended.value(), c.batch, c.cache, c.options, none).message(),
              testing::HasSubstr("but query is in cpu memory"));
}

}  // namespace
}  // namespace quire::test
