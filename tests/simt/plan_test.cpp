// SPDX-License-Identifier: Apache-2.0
// plan() for a GPU and the host side of its backends, on the stand-in: capacities suffice, the workspace holds everything,
// arguments are resolved rightly. No device is needed for any of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "backend/gpu/attend_generic.h"
#include "backend/gpu/fill_rows.h"
#include "backend/gpu/reset.h"
#include "backend/gpu/resolve.h"
#include "backend/gpu/schedule.h"
#include "backend/gpu/validate.h"
#include "kernels/hazard_cases.h"
#include "kernels/judge.h"
#include "plan/device_lists.h"
#include "plan/device_workspace.h"
#include "quire/tools/diagnose.hpp"
#include "simt/device.h"
#include "support/page_cases.h"

namespace quire::test {
namespace {

/// Host memory in the place of a device's: poisoned, with a guard behind it.
class FakeWorkspace {
 public:
  explicit FakeWorkspace(const Plan& plan) : bytes_(workspace_bytes(plan)), memory_(bytes_ + 512, std::byte{0xFF}) {
    const auto words = static_cast<std::int32_t>(plan_detail::device_workspace(plan).reset_bytes / 4);
    const gpu::ResetArgs args{reinterpret_cast<gpu::CallState*>(data()), words};
    EXPECT_EQ(simt::run({1, gpu::kResetThreads, 32, 0, 0, {}, nullptr}, [&] { gpu::reset(args); }), "");
  }
  std::byte* data() {
    void* start = memory_.data();
    std::size_t room = memory_.size();
    return static_cast<std::byte*>(std::align(256, bytes_, start, room));
  }
  bool guard_intact() {
    for (std::byte* b = data() + bytes_; b < memory_.data() + memory_.size(); ++b)
      if (*b != std::byte{0xFF}) return false;
    return true;
  }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

/// Runs the launches that cuda::attend() enqueues, and judges them like cuda::attend_status().
Status attend_by(const Plan& plan, const Case& c, int blocks, std::int64_t& rows) {
  FakeWorkspace workspace(plan);
  const gpu::GenericArgs args = gpu::attend_args(plan, c.batch, c.cache, c.options, workspace.data(), 0);
  const auto launch = [&](int count, int shared_bytes) { return simt::Launch{count, 256, 32, shared_bytes, 7, {}, nullptr}; };
  std::string error = simt::run(launch(2, 0), [&] { gpu::validate(args, gpu::block_index(), gpu::num_blocks()); });
  if (error.empty()) error = simt::run(launch(1, gpu::kScheduleSharedBytes), [&] { gpu::schedule(args, gpu::SharedArea()); });
  if (error.empty())
    error = simt::run(launch(blocks, gpu::kGenericSharedBytes), [&] { gpu::attend_generic(args, gpu::SharedArea()); });
  if (!error.empty()) return {Code::internal_error, error};
  if (error.empty() && args.fills_rows()) error = simt::run(launch(blocks, 0), [&] { gpu::fill_rows(args); });
  if (!workspace.guard_intact()) return {Code::internal_error, "something was written behind the workspace"};
  rows = static_cast<std::int64_t>(args.outcome->rows_written);
  return gpu::judge(*args.outcome, plan, c.batch);
}
Status attend_as_planned(const Case& c, const PlanSettings& settings, int blocks, std::int64_t& rows) {
  const Result<Plan> planned = plan(problem_of(c.batch, c.cache, c.options), find_device("sm90").value(), settings);
  return planned.ok() ? attend_by(planned.value(), c, blocks, rows) : planned.status();
}

class SimtPlan : public testing::TestWithParam<Hazard> {};

TEST_P(SimtPlan, CapacitiesAndArgumentsSuffice) {
  std::size_t turn = GetParam().name.size();
  for (const std::string& shape : GetParam().shapes) {
    const ProblemLine line = hazard_line(type_combinations()[turn % type_combinations().size()], shape, turn);
    const bool invariant = turn++ % 2 == 0;
    const std::vector<std::string> findings = judge(line, [&](const Case& c, int num_threads, std::int64_t& rows) {
      return attend_as_planned(c, {.kernel = "cuda_generic", .batch_invariant = invariant, .num_threads = 1},
                               num_threads > 1 ? 4 : 2, rows);
    });
    EXPECT_TRUE(findings.empty()) << report(line, findings);
  }
}

INSTANTIATE_TEST_SUITE_P(, SimtPlan, testing::ValuesIn(hazards()), [](const auto& test) { return test.param.name; });

TEST(SimtPlanBounds, LongerRequestsThanPlannedBreakTheCallAndWriteNothing) {
  // Fixed parts: the capacities of max_seq_len 100 have no room for 20000 keys.
  const Case c = make_case(parse_problem_line("q=f32 heads=1:1 d=8 page=16 reqs=1x1@20000 seed=1").value()).value();
  Problem shorter = problem_of(c.batch, c.cache, c.options);
  shorter.reqs = {{1, 99, 100}};
  const Plan plan = quire::plan(shorter, find_device("sm90").value(), {.batch_invariant = true}).value();
  FakeWorkspace workspace(plan);
  const gpu::GenericArgs args = gpu::attend_args(plan, c.batch, c.cache, c.options, workspace.data(), 0);
  ASSERT_EQ(simt::run({1, 256, 32, 0, 0, {}, nullptr}, [&] { gpu::validate(args, gpu::block_index(), gpu::num_blocks()); }), "");
  EXPECT_NE(args.outcome->broken, 0);
  args.outcome->broken = 0;  // the schedule finds it, too: its capacities have no room
  ASSERT_EQ(simt::run({1, 256, 32, gpu::kScheduleSharedBytes, 0, {}, nullptr}, [&] { gpu::schedule(args, gpu::SharedArea()); }),
            "");
  EXPECT_NE(args.outcome->broken, 0);
  EXPECT_EQ(*args.work.num_slices, 0);
  EXPECT_TRUE(workspace.guard_intact());
}

/// What attend() on a device plans: it does not read lengths, and has room for as many keys as the table. Requests may have more.
Plan plan_from_shapes(const Case& c, const PlanSettings& settings) {
  const Problem whole = problem_of(c.batch, c.cache, c.options);
  Problem unread = whole;
  unread.reqs.clear();
  unread.spans.clear();
  Plan planned = plan(std::move(unread), find_device("sm90").value(), settings).value();
  const std::int64_t rows = c.batch.query.shape[0], held = c.batch.block_table.shape[1] * page_size(c.cache);
  planned.problem = whole;
  planned.bounds = {c.batch.seq_lens.shape[0], rows, rows, held + (c.batch.key.present() ? rows : 0), true};
  EXPECT_TRUE(plan_detail::size_lists(planned).ok());
  return planned;
}

TEST(SimtPlanBounds, TablesNarrowerThanTheirKeysAreServed) {
  std::mt19937_64 random(8);
  int narrow = 0;
  for (int i = 0; i < 400; ++i) {
    const PageCase of = drawn_page_case(random, i % 2 == 0 ? 24 : 300);
    PageBatch batch(of, of.needed_columns(), random);
    const PlanSettings settings{.kernel = "cuda_generic", .batch_invariant = i % 3 == 0, .num_threads = i % 5 == 0 ? 132 : 1};
    const Plan planned = plan_from_shapes(*batch, settings);
    for (const Request& r : planned.problem.reqs) narrow += r.seq_len() > planned.bounds.max_seq_len ? 1 : 0;
    std::int64_t rows = 0;
    const Status status = attend_by(planned, *batch, 2, rows);
    ASSERT_TRUE(status.ok()) << of.text() << "columns " << of.needed_columns() << ": " << status.message();
  }
  EXPECT_GT(narrow, 300);
}

/// A request whose rows see a prefix and keys far behind it, and none between: a tree whose bits are 0, rows behind all keys, or
/// this step's keys, seen by a tree, a chunk or a window of one key.
PageCase drawn_far_case(std::mt19937_64& random) {
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); };
  PageCase c;
  c.page_size = 1 + below(40);
  c.rows = 1 + below(20);
  c.num_keys = below(2) * below(9000) + 4096 * (1 + below(3)) + below(c.rows + 1);
  c.prefix = below(2) == 0 ? 0 : below(2) == 0 ? 1 + below(60) : 4000 + below(200);
  c.cached = c.num_keys;
  c.window = 1;
  const std::int64_t tree = 1 + below(30);
  if (below(2) == 0) {
    c.has_q_begin = true;
    c.q_begin = c.num_keys + below(9);
    if (below(4) > 0) c.bits.assign(static_cast<std::size_t>(c.rows), std::vector<bool>(static_cast<std::size_t>(tree)));
    return c;
  }
  c.cached = c.q_begin = c.num_keys - c.rows;
  if (below(3) == 0) {
    c.window = 0, c.chunk = c.cached;
  } else if (below(2) == 0) {
    for (std::int64_t row = 0; row < c.rows; ++row)
      for (std::int64_t b = (c.bits.emplace_back(), 0); b < c.rows + tree; ++b)
        c.bits.back().push_back(b >= tree && (b == tree + row || (b < tree + row && below(2) == 0)));
  }
  return c;
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  const auto* first = static_cast<const std::byte*>(t.data);
  return {first, first + t.num_elements() * itemsize(t.dtype)};
}

/// A tile's parts of fixed size are no more than the plan, which knows the table and no lengths, has room for, and a row's bits
/// do not depend on the table's width.
TEST(SimtPlanBounds, KeysFarBehindTheTableAreServed) {
  std::mt19937_64 random(21);
  for (int i = 0; i < 150; ++i) {
    const PageCase of = drawn_far_case(random);
    PageBatch batch(of, (of.cached - 1) / of.page_size + 1, random);
    std::int64_t& columns = batch->batch.block_table.shape[1];
    std::vector<std::byte> bits[2];
    for (const std::int64_t width : {of.needed_columns(), columns}) {
      columns = width;
      const PlanSettings settings{.kernel = "cuda_generic", .batch_invariant = i % 4 > 0, .num_threads = i % 8 == 0 ? 132 : 1};
      std::int64_t rows = 0;
      const Status status = attend_by(plan_from_shapes(*batch, settings), *batch, 2, rows);
      ASSERT_TRUE(status.ok()) << of.text() << "columns " << width << ": " << status.message();
      const Result<Reference> expected = reference(batch->batch, batch->cache, batch->options);
      ASSERT_TRUE(expected.ok()) << of.text() << ": " << expected.status().message();
      const Comparison judged = compare(batch->batch.output, batch->batch.lse, expected.value());
      ASSERT_TRUE(judged.ok) << of.text() << "\n" << judged.text;
      bits[width == of.needed_columns() ? 0 : 1] = bytes_of(batch->batch.output);
    }
    EXPECT_TRUE(bits[1].empty() || i % 4 == 0 || bits[0] == bits[1]) << of.text();
  }
}

/// Whether validate() refuses lengths that the plan has room for.
bool breaks_bounds(const Case& c, const Plan& plan) {
  FakeWorkspace workspace(plan);
  const gpu::GenericArgs args = gpu::attend_args(plan, c.batch, c.cache, c.options, workspace.data(), 0);
  EXPECT_EQ(simt::run({1, 256, 32, 0, 0, {}, nullptr}, [&] { gpu::validate(args, gpu::block_index(), gpu::num_blocks()); }), "");
  return args.outcome->broken != 0;
}

TEST(SimtPlanBounds, ASequenceBeyondTheBoundBreaksTheCallThoughThereIsRoom) {
  const Case c = make_case(parse_problem_line("q=f32 heads=2:1 d=8 page=16 reqs=1x1@299,1x5@40 seed=1").value()).value();
  const auto planned = [&](std::int64_t longest) {
    Problem p = problem_of(c.batch, c.cache, c.options);
    p.reqs[0] = {1, longest - 1, longest};
    return quire::plan(p, find_device("sm90").value()).value();
  };
  EXPECT_FALSE(breaks_bounds(c, planned(300)));
  EXPECT_TRUE(breaks_bounds(c, planned(299)));
  Plan from_shapes = planned(299);
  from_shapes.bounds.seq_len_from_shapes = true;
  EXPECT_FALSE(breaks_bounds(c, from_shapes));
}

}  // namespace
}  // namespace quire::test
