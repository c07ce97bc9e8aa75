// SPDX-License-Identifier: Apache-2.0
// attend() through the HIP host code: every hazard on each of the fake devices and for both rows of the kernel table, against the
// fp64 reference; broken lengths and tables are reported and nothing is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

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

/// Caches of 4 bits, each type once, on the devices in turn.
TEST(HipFourBits, TheGenericKernelServesEachType) {
  ASSERT_FALSE(gpu_devices().empty());
  int turn = 0;
  for (const verify_detail::Entry& entry : verify_detail::four_bit_matrix({}, /*quick=*/true)) {
    set_fake_device(turn++ % 3);
    const std::vector<std::string> findings = judge(entry.line, on_fake({.kernel = "hip_generic"}));
    EXPECT_TRUE(findings.empty()) << report(entry.line, findings);
  }
  EXPECT_GE(turn, 5);
}

/// The device finds what no host has read, and says it in the host's words.
TEST(HipCall, BrokenBatchesAreReportedAndLeaveTheOutputAsItWas) {
  ASSERT_FALSE(gpu_devices().empty());
  set_fake_device(0);
  for (const Mutation& mutation : mutations()) {
    Case c = without_slots(kLineToBreak);
    mutation.apply(c);
    verify_detail::Guarded output(c.batch.output, verify_detail::Spread::contiguous);
    c.batch.output = output.view;
    std::int64_t rows = 0;
    const Status status = attend_on_fake(c, {.kernel = "hip_generic"}, rows);
    EXPECT_EQ(status.rule(), mutation.rule) << status.message();
    EXPECT_EQ(output.take(), verify_detail::fill_pattern(c.batch.output.dtype, c.batch.output.num_elements())) << mutation.rule;
  }
}

/// A case there, planned, with a workspace; `set_page` writes block_table[0][0] as an engine's kernel would between replays.
struct Replayed {
  Case c =
      make_case(parse_problem_line("q=bf16 kv=bf16 heads=4:2 d=64 page=16 reqs=3@20,1@70,2x0 lse=1 pad=2:zero").value()).value();
  cases::DeviceCase there = cases::DeviceCase::upload(c, Memory::hip).value();
  Plan planned = plan(there.batch(), there.cache(), there.options()).value();
  cases::DeviceBytes memory = there.poisoned(workspace_bytes(planned)).value();
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

/// A step of one preparation and several layers, as an engine enqueues it.
struct Prepared {
  Case c;
  cases::DeviceCase there = cases::DeviceCase::upload(c, Memory::hip).value();
  Plan planned;
  cases::DeviceBytes memory = there.poisoned(workspace_bytes(planned)).value();
  std::span<std::byte> workspace{memory.data(), workspace_bytes(planned)};
  std::vector<RowCount> counts;

  Prepared(const std::string& line, const PlanSettings& settings)
      : c(without_slots(line.c_str())), planned(plan(there.batch(), there.cache(), there.options(), settings).value()) {}

  void prepare(const AttendOptions& options = {}) {
    const Status s = quire::prepare(planned, there.batch(), there.cache(), there.options(), workspace, options);
    ASSERT_TRUE(s.ok()) << s.message();
  }
  void layer(AttendOptions options = {}) {
    options.prepared = true;
    const Status s = attend(planned, there.batch(), there.cache(), there.options(), workspace, options);
    ASSERT_TRUE(s.ok()) << s.message();
  }
  Status status() {
    counts.clear();
    return attend_status(planned, there.batch(), there.cache(), there.options(), workspace, {.rows = &counts});
  }
  /// Sets an element of the device's copy of a host array.
  template <typename T>
  void set(const Tensor& t, std::size_t i, T value) {
    auto* const at = static_cast<T*>(t.data) + i;
    ASSERT_TRUE(device::runtime_of(Memory::hip)->copy_to_device(at, &value, sizeof value).ok());
  }
  /// The output begins anew, so that a layer that writes nothing is seen.
  void forget_output() {
    const std::vector<std::byte> bytes(static_cast<std::size_t>(c.batch.output.num_elements() * itemsize(c.batch.output.dtype)),
                                       std::byte{0x7F});
    ASSERT_TRUE(device::runtime_of(Memory::hip)->copy_to_device(there.batch().output.data, bytes.data(), bytes.size()).ok());
  }
  bool output_untouched() {
    EXPECT_TRUE(there.download(c).ok());
    const auto* const bytes = static_cast<const std::byte*>(c.batch.output.data);
    return std::all_of(bytes, bytes + c.batch.output.num_elements() * itemsize(c.batch.output.dtype),
                       [](std::byte b) { return b == std::byte{0x7F}; });
  }
  std::string wrong() {
    EXPECT_TRUE(there.download(c).ok());
    const Comparison comparison = compare(c.batch.output, c.batch.lse, reference(c.batch, c.cache, c.options).value());
    return comparison.ok ? "" : comparison.text;
  }
};

constexpr const char* kStep = "q=bf16 kv=bf16 heads=4:2 d=64 page=16 reqs=3@300,1@70,40@200,2x0 lse=1";
constexpr const char* kPaddedStep = "q=bf16 kv=bf16 heads=4:2 d=64 page=16 reqs=3@300,1@70,2x0 lse=1 pad=2:zero";

class HipStep : public testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  void SetUp() override {
    ASSERT_FALSE(gpu_devices().empty());
    set_fake_device(std::get<0>(GetParam()));
  }
  PlanSettings settings(bool invariant = false) const {
    return {.kernel = std::get<1>(GetParam()), .batch_invariant = invariant};
  }
};

/// Counters that a layer used up are right for the next one, split tiles and all, and every row of every layer is counted.
TEST_P(HipStep, LayersAreRightAfterOnePreparation) {
  for (const char* line : {kStep, kPaddedStep})
    for (const bool invariant : {false, true}) {
      Prepared step(line, settings(invariant));
      step.prepare();
      EXPECT_TRUE(step.status().ok()) << "no layer has run";
      for (int layer = 1; layer <= 4; ++layer) {
        step.forget_output();
        step.layer();
        EXPECT_EQ(step.wrong(), "") << line << " layer " << layer;
        EXPECT_TRUE(step.status().ok()) << step.status().message();
        ASSERT_EQ(step.counts.size(), 1u);
        EXPECT_EQ(step.counts[0].rows, layer * 4 * num_request_rows(step.c.batch));
      }
    }
}

/// Replays with other lengths: a preparation in each.
TEST_P(HipStep, LengthsChangeBetweenSteps) {
  Prepared step(kStep, settings());
  for (const std::int32_t seq_len : {303, 170, 64, 303}) {
    static_cast<std::int32_t*>(step.c.batch.seq_lens.data)[0] = seq_len;
    step.set(step.there.batch().seq_lens, 0, seq_len);
    step.prepare();
    for (int layer = 0; layer < 2; ++layer) {
      step.forget_output();
      step.layer();
      EXPECT_EQ(step.wrong(), "") << seq_len;
    }
    EXPECT_TRUE(step.status().ok()) << step.status().message();
  }
}

TEST_P(HipStep, AnAttendPreparesTheLayersBehindIt) {
  Prepared step(kStep, settings());
  ASSERT_TRUE(attend(step.planned, step.there.batch(), step.there.cache(), step.there.options(), step.workspace).ok());
  step.forget_output();
  step.layer();
  EXPECT_EQ(step.wrong(), "");
  EXPECT_TRUE(step.status().ok()) << step.status().message();
}

TEST_P(HipStep, ABrokenTableRefusesEveryLayerAndIsHeard) {
  Prepared step(kStep, settings());
  const auto right = static_cast<const std::int32_t*>(step.c.batch.block_table.data)[0];
  step.set(step.there.batch().block_table, 0, -1);
  take_broken_ticket();
  step.prepare({.ticket = 5});
  step.forget_output();
  for (int layer = 0; layer < 3; ++layer) step.layer({.ticket = 6});
  EXPECT_TRUE(step.output_untouched());
  EXPECT_EQ(step.status().rule(), "Q-T03");
  EXPECT_EQ(take_broken_ticket(), 5u);
  step.layer({.nan_if_refused = true});
  ASSERT_TRUE(step.there.download(step.c).ok());
  EXPECT_TRUE(std::isnan(semantics::load(step.c.batch.output.data, step.c.batch.output.dtype, 0)));
  step.set(step.there.batch().block_table, 0, right);
  step.prepare();
  step.layer();
  EXPECT_EQ(step.wrong(), "");
  EXPECT_THAT(step.status().message(), testing::HasSubstr("with this workspace before the last one wrote no row"));
  EXPECT_TRUE(step.status().ok()) << step.status().message();
}

/// Nobody asked after the broken step: layers of the next one do not hide it.
TEST_P(HipStep, LayersOfARefusedStepAreCounted) {
  Prepared step(kStep, settings());
  const auto right = static_cast<const std::int32_t*>(step.c.batch.block_table.data)[0];
  step.set(step.there.batch().block_table, 0, -1);
  step.prepare();
  for (int layer = 0; layer < 3; ++layer) step.layer();
  step.set(step.there.batch().block_table, 0, right);
  step.prepare();
  step.layer();
  EXPECT_THAT(step.status().message(), testing::HasSubstr("3 calls with this workspace"));
}

TEST_P(HipStep, ALayerWithoutAPreparationIsRefused) {
  for (const int byte : {0xFF, 0x00, 0x7F}) {
    Prepared step(kStep, settings());
    const std::vector<std::byte> born(step.workspace.size(), static_cast<std::byte>(byte));
    ASSERT_TRUE(device::runtime_of(Memory::hip)->copy_to_device(step.workspace.data(), born.data(), born.size()).ok());
    take_broken_ticket();
    step.forget_output();
    step.layer({.ticket = 7});
    step.layer();
    EXPECT_TRUE(step.output_untouched());
    EXPECT_EQ(take_broken_ticket(), 7u | kTicketNotPrepared);
    const bool asks = byte == 0xFF;  // a caller that does not ask hears of it in the next step
    if (asks) {
      EXPECT_EQ(step.status().code(), Code::invalid_argument);
      EXPECT_THAT(step.status().message(), testing::HasSubstr("2 prepared layers wrote no row"));
    }
    step.prepare();
    step.layer();
    EXPECT_EQ(step.wrong(), "");
    EXPECT_THAT(step.status().message(), testing::HasSubstr(asks ? "" : "2 calls with this workspace"));
    EXPECT_TRUE(step.status().ok()) << step.status().message();
  }
}

/// Another plan, other addresses, another window: what is there is not this layer's.
TEST_P(HipStep, ALayerOfAnotherPreparationIsRefused) {
  Prepared step(kStep, settings()), other(kStep, settings());
  const auto refused = [&](const char* what, const Plan& planned, const Batch& batch, const Options& options) {
    step.prepare();
    step.forget_output();
    const Status s = attend(planned, batch, step.there.cache(), options, step.workspace, {.prepared = true});
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_TRUE(step.output_untouched()) << what;
    EXPECT_EQ(step.status().code(), Code::invalid_argument) << what;
    step.layer();
    EXPECT_EQ(step.wrong(), "") << "its own layers are served";
  };
  PlanSettings bounded = settings();
  bounded.max_seq_len = 303;  // seq_len of the longest request; the table has room for 304
  const Plan tighter = plan(step.there.batch(), step.there.cache(), step.there.options(), bounded).value();
  ASSERT_LE(workspace_bytes(tighter), step.workspace.size());
  refused("plan", tighter, step.there.batch(), step.there.options());
  Batch batch = step.there.batch();
  batch.seq_lens.data = other.there.batch().seq_lens.data;
  refused("seq_lens", step.planned, batch, step.there.options());
  batch = step.there.batch();
  batch.block_table.data = other.there.batch().block_table.data;
  refused("block_table", step.planned, batch, step.there.options());
  // The layer's own tensors may lie anywhere.
  step.prepare();
  batch = step.there.batch();
  batch.output.data = other.there.batch().output.data;
  batch.lse.data = other.there.batch().lse.data;
  batch.query.data = other.there.batch().query.data;
  ASSERT_TRUE(attend(step.planned, batch, other.there.cache(), step.there.options(), step.workspace, {.prepared = true}).ok());
  EXPECT_EQ(other.wrong(), "");
  EXPECT_THAT(step.status().message(), testing::HasSubstr("with this workspace before the last one wrote no row"));
}

/// Rows that see other keys are another step: work lists were made for the keys that its rows see.
TEST_P(HipStep, ALayerOfAnotherMaskIsRefused) {
  const std::string line = std::string(kStep) + " causal=0,1,0,2x0 wright=40 window=200 qbegin=290,70,200,2x0 kbegin=3,0,7,2x0";
  const PlanSettings portable{.kernel = "hip_generic"};
  Prepared step(line, portable), other(line, portable);
  const auto refused = [&](const char* what, const Batch& batch, const Options& options) {
    step.prepare();
    step.forget_output();
    const Status s = attend(step.planned, batch, step.there.cache(), options, step.workspace, {.prepared = true});
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_TRUE(step.output_untouched()) << what;
    EXPECT_EQ(step.status().code(), Code::invalid_argument) << what;
    step.layer();
    EXPECT_EQ(step.wrong(), "") << "its own layers are served";
  };
  for (Tensor Batch::* of : {&Batch::causal, &Batch::q_begin, &Batch::key_begin}) {
    Batch batch = step.there.batch();
    (batch.*of).data = (other.there.batch().*of).data;
    refused("a tensor of masks", batch, step.there.options());
  }
  Options options = step.there.options();
  options.window_right = 41;
  const Status s = attend(step.planned, step.there.batch(), step.there.cache(), options, step.workspace, {.prepared = true});
  EXPECT_THAT(s.message(), testing::HasSubstr("window_right differs (plan 40, options 41"));
}

TEST_P(HipStep, LengthsThatChangedSinceAreHeard) {
  Prepared step(kStep, settings());
  for (const bool starts : {false, true}) {
    step.prepare();
    step.layer();
    EXPECT_TRUE(step.status().ok()) << step.status().message();
    take_broken_ticket();
    if (starts)
      step.set(step.there.batch().query_start_loc, 1, 2);
    else
      step.set(step.there.batch().seq_lens, 0, 290);
    step.layer({.ticket = 9});
    EXPECT_EQ(step.status().code(), Code::invalid_argument);
    EXPECT_THAT(step.status().message(), testing::HasSubstr("prepare again"));
    EXPECT_EQ(take_broken_ticket(), 9u | kTicketNotPrepared);
    step.set(step.there.batch().query_start_loc, 1, 3);
    step.set(step.there.batch().seq_lens, 0, 303);
  }
}

INSTANTIATE_TEST_SUITE_P(, HipStep, testing::Combine(testing::Values(0, 1, 2), testing::Values("hip_generic", "hip_matrix")));

/// Whatever is current: the call goes where its tensors are, and leaves current what was.
TEST(HipCall, GoesToTheDeviceOfItsTensors) {
  Case c = make_case(parse_problem_line("q=bf16 kv=bf16 heads=4:2 d=64 page=16 reqs=3@20,1@70").value()).value();
  const Result<Reference> expected = reference(c.batch, c.cache, c.options);
  ASSERT_TRUE(expected.ok());
  set_fake_device(1);
  const auto there = cases::DeviceCase::upload(c, Memory::hip);
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
  const auto there = cases::DeviceCase::upload(c, Memory::hip);
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
  const auto there = cases::DeviceCase::upload(c, Memory::hip);
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
