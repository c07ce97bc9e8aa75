// SPDX-License-Identifier: Apache-2.0
// attend() as a call: what it refuses before it writes, who ran what, and that threads, executors and cuts never change a bit.
#include <gmock/gmock.h>

#include <cstring>
#include <random>
#include <vector>

#include "plan/kernel.h"
#include "quire/attention.hpp"
#include "quire/tools/capture.hpp"
#include "quire/tools/diagnose.hpp"

namespace quire {
namespace {

using testing::HasSubstr;

/// A made case with its plan and workspace; `run` attends and returns the status.
struct Runner {
  Case data;
  Plan plan;
  std::vector<std::byte> memory;
  std::span<std::byte> workspace;

  explicit Runner(const char* line, const PlanSettings& settings = {})
      : data(make_case(parse_problem_line(line).value()).value()) {
    plan = quire::plan(data.batch, data.cache, data.options, settings).value();
    memory.resize(workspace_bytes(plan) + 64);
    const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    workspace = {memory.data() + (64 - at % 64) % 64, workspace_bytes(plan)};
  }
  Status run(const AttendOptions& options = {}) { return attend(plan, data.batch, data.cache, data.options, workspace, options); }
  std::vector<std::byte> output() const {
    const auto* begin = static_cast<const std::byte*>(data.batch.output.data);
    return {begin, begin + data.batch.output.num_elements() * itemsize(data.batch.output.dtype)};
  }
};

constexpr const char* kMixed = "q=bf16 heads=8:2 d=64 page=16 reqs=70@33,1@2500,0@9,3@40 lse=1 seed=3";

void expect_refused_untouched(Runner& r, const Status& status, const char* text) {
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(text));
  const Runner fresh(kMixed);
  EXPECT_EQ(r.output(), fresh.output()) << "an output byte changed although the call was refused";
}

TEST(Attend, MatchesTheReferenceAndCountsRows) {
  Runner r(kMixed);
  std::vector<RowCount> rows;
  ASSERT_TRUE(r.run({.rows = &rows}).ok());
  const Comparison c =
      compare(r.data.batch.output, r.data.batch.lse, reference(r.data.batch, r.data.cache, r.data.options).value());
  EXPECT_TRUE(c.ok) << c.text;
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].rows, 74 * 8);
  EXPECT_EQ(rows[0].kernel, r.plan.kernel);
}

/// Callers write one code for CPUs and GPUs: prepare() refuses what attend() refuses, and layers are calls like any other.
TEST(Prepare, ChecksOnACpuAndLayersDoTheirWork) {
  Runner r(kMixed), alone(kMixed);
  const auto given = [&](const BoundAttend* bound, bool layer) {
    const Case& c = r.data;
    if (bound == nullptr) return layer ? r.run({.prepared = true}) : prepare(r.plan, c.batch, c.cache, c.options, r.workspace);
    return layer ? bound->run(c.batch, c.cache, c.options, r.workspace, {.prepared = true})
                 : bound->prepare(c.batch, c.cache, c.options, r.workspace);
  };
  const std::vector<std::byte> before = r.output();
  const BoundAttend bound = BoundAttend::make(r.plan, r.data.batch, r.data.cache, r.data.options).value();
  ASSERT_TRUE(alone.run().ok());
  for (const BoundAttend* how : {static_cast<const BoundAttend*>(nullptr), &bound}) {
    ASSERT_TRUE(given(how, false).ok());
    ASSERT_TRUE(given(how, true).ok());
    EXPECT_EQ(r.output(), alone.output());
  }
  static_cast<std::int32_t*>(r.data.batch.block_table.data)[0] = -1;
  for (const BoundAttend* how : {static_cast<const BoundAttend*>(nullptr), &bound})
    for (const bool layer : {false, true}) EXPECT_EQ(given(how, layer).rule(), "Q-T03");
  Runner fresh(kMixed);
  ASSERT_TRUE(prepare(fresh.plan, fresh.data.batch, fresh.data.cache, fresh.data.options, fresh.workspace).ok());
  EXPECT_EQ(fresh.output(), before) << "prepare() wrote a row";
  EXPECT_FALSE(prepare(fresh.plan, fresh.data.batch, fresh.data.cache, fresh.data.options, {}).ok());
}

/// The same numbers in another layout: every sum keeps its order, whichever way its operands are fetched.
TEST(Attend, LayoutsGiveTheSameBits) {
  for (const char* kernel : {"cpu_scalar", "cpu_avx2", "cpu_avx512", "cpu_avx512bf16", "cpu_neon"})
    for (const char* types : {"q=f16", "q=bf16", "q=f32", "q=bf16 kv=fp8_e4m3fn kscale=head vscale=tensor"})
      for (const char* shape : {"heads=8:2 d=128 page=16 reqs=70@33,1@700,3@40",
                                "heads=4:4 d=64 page=32 reqs=1@95,1@511 window=50", "heads=12:2 d=80 page=8 reqs=5@60,1@200/200",
                                "heads=4:2 d=128 page=8 reqs=3@60,1@300", "heads=2:1 d=16 page=24 reqs=1@100,40@3"}) {
        const auto line = [&](const char* layout) { return std::string(types) + " " + shape + " layout=" + layout + " seed=5"; };
        const Case probe = make_case(parse_problem_line(line("nhd")).value()).value();
        if (!quire::plan(probe.batch, probe.cache, probe.options, {.kernel = kernel}).ok()) continue;
        Runner nhd(line("nhd").c_str(), {.kernel = kernel}), packed(line("packed").c_str(), {.kernel = kernel});
        ASSERT_TRUE(nhd.run().ok());
        ASSERT_TRUE(packed.run().ok());
        EXPECT_EQ(nhd.output(), packed.output()) << kernel << ": " << line("packed");
      }
}

TEST(Attend, RefusesAStalePlan) {
  Runner r(kMixed);
  r.plan.problem.reqs[1].context_len += 1;
  expect_refused_untouched(r, r.run(), "request 1 has query_len 1 context_len 2500 cached_len 2501, planned 1 2501 2501");
}

TEST(Attend, RefusesOtherHeadsTypesOrWindow) {
  Runner r(kMixed);
  r.plan.problem.head_dim = 32;
  expect_refused_untouched(r, r.run(), "d=32");
  r.plan.problem.head_dim = 64;
  r.plan.problem.kv_dtype = DType::f16;
  expect_refused_untouched(r, r.run(), "kv=f16");
  r.plan.problem.kv_dtype = DType::bf16;
  r.data.options.sliding_window = 8;
  expect_refused_untouched(r, r.run(), "sliding_window differs (plan 0, options 8");
}

TEST(Attend, RefusesASmallOrMisalignedWorkspace) {
  Runner r(kMixed);
  const std::span<std::byte> whole = r.workspace;
  r.workspace = whole.first(whole.size() - 1);
  expect_refused_untouched(r, r.run(), "workspace has");
  r.memory.resize(r.memory.size() + 64);
  const auto at = reinterpret_cast<std::uintptr_t>(r.memory.data());
  r.workspace = {r.memory.data() + (64 - at % 64) % 64 + 4, workspace_bytes(r.plan)};
  expect_refused_untouched(r, r.run(), "not aligned to 64 bytes");
}

/// A copy of a tensor's elements, in the same strides, in the middle of the workspace.
Tensor moved_into(std::span<std::byte> workspace, const Tensor& t) {
  const std::size_t bytes = static_cast<std::size_t>(t.num_elements() * itemsize(t.dtype));
  const std::size_t at = std::min(workspace.size() / 2, workspace.size() - bytes) / 64 * 64;
  std::memcpy(workspace.data() + at, t.data, bytes);
  Tensor there = t;
  there.data = workspace.data() + at;
  return there;
}

TEST(Attend, RefusesAWorkspaceThatSharesMemoryWithATensor) {
  const std::pair<const char*, Tensor* (*)(Case&)> tensors[] = {
      {"output", [](Case& c) { return &c.batch.output; }},     {"lse", [](Case& c) { return &c.batch.lse; }},
      {"query", [](Case& c) { return &c.batch.query; }},       {"cache.k", [](Case& c) { return &c.cache.k; }},
      {"cache.v", [](Case& c) { return &c.cache.v; }},         {"block_table", [](Case& c) { return &c.batch.block_table; }},
      {"seq_lens", [](Case& c) { return &c.batch.seq_lens; }},
  };
  for (const auto& [name, of] : tensors) {
    Runner r(kMixed);
    const std::size_t bytes = std::max(std::size_t{4} << 20, 2 * workspace_bytes(r.plan));  // more cores need more
    r.memory.resize(bytes);
    const auto at = reinterpret_cast<std::uintptr_t>(r.memory.data());
    r.workspace = std::span(r.memory).subspan((64 - at % 64) % 64, bytes - 64);
    ASSERT_LT(workspace_bytes(r.plan), r.workspace.size());
    *of(r.data) = moved_into(r.workspace, *of(r.data));
    const std::vector<std::byte> before = r.memory;
    const Status status = r.run();
    EXPECT_EQ(status.rule(), "Q-M37") << name << ": " << status.message();
    EXPECT_THAT(status.message(), HasSubstr(std::string("workspace: shares memory with ") + name));
    EXPECT_EQ(r.memory, before) << name;
  }
}

TEST(Attend, RefusesMoreThreadsThanPlanned) {
  Runner r(kMixed, {.num_threads = 1});
  const auto pool = make_thread_pool(2);
  expect_refused_untouched(r, r.run({.executor = pool.get()}), "the executor has 2 threads, the plan scratch for 1");
}

TEST(Attend, RefusesABrokenTableWithItsRule) {
  Runner r(kMixed);
  static_cast<std::int32_t*>(r.data.batch.block_table.data)[0] = 1 << 20;
  const Status s = r.run();
  EXPECT_EQ(s.rule(), "Q-T03") << s.message();
  expect_refused_untouched(r, s, "block_table[0][0]: page 1048576 outside [0,");
}

TEST(Attend, RefusesAnUnknownKernel) {
  Runner r(kMixed);
  plan_detail::KernelRow future = r.plan.kernel.row();
  future.info.name = "cuda_future";
  r.plan.kernel = future;
  expect_refused_untouched(r, r.run(), "kernel cuda_future of the plan is not in this build");
  const Status bound = BoundAttend::make(r.plan, r.data.batch, r.data.cache, r.data.options).status();
  EXPECT_EQ(bound.code(), Code::unsupported);
  EXPECT_NE(bound.message().find("kernel cuda_future of the plan is not in this build"), std::string::npos) << bound.message();
}

TEST(Attend, RefusesAPlanForAnotherMachine) {
  Runner r(kMixed);
  r.plan.device.cpu_features |= 1u << 31;  // no machine sets this bit
  r.plan.device.name = "later";
  expect_refused_untouched(r, r.run(), "the plan was made for device later, this machine is");
  const Status bound = BoundAttend::make(r.plan, r.data.batch, r.data.cache, r.data.options).status();
  EXPECT_EQ(bound.code(), Code::unsupported) << bound.message();
}

/// Runs tasks on the calling thread in a shuffled order, as a user's scheduler might.
class ShuffledExecutor final : public Executor {
 public:
  int num_threads() const noexcept override { return 2; }
  void run(std::int64_t num_tasks, void (*task)(void*, std::int64_t, int), void* context) override {
    std::vector<std::int64_t> order(static_cast<std::size_t>(num_tasks));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
    std::shuffle(order.begin(), order.end(), random_);
    for (std::int64_t i : order) task(context, i, static_cast<int>(i % 2));
  }

 private:
  std::mt19937 random_{7};
};

TEST(Attend, ThreadsExecutorsAndCutsNeverChangeABit) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.backend != Backend::cpu || (kernel.cpu_features & ~host_device().cpu_features) != 0) continue;
    Runner alone(kMixed, {.kernel = std::string(kernel.name), .num_threads = 1});
    const auto one = make_thread_pool(1);
    ASSERT_TRUE(alone.run({.executor = one.get()}).ok());
    ASSERT_EQ(alone.plan.num_merges(), 0);

    Runner split(kMixed, {.kernel = std::string(kernel.name), .num_threads = 64});
    ASSERT_GT(split.plan.num_merges(), 0) << "the case must exercise split-KV";
    ASSERT_TRUE(split.run().ok());
    EXPECT_EQ(split.output(), alone.output()) << kernel.name;

    ShuffledExecutor shuffled;
    Runner other(kMixed, {.kernel = std::string(kernel.name), .num_threads = 64});
    ASSERT_TRUE(other.run({.executor = &shuffled}).ok());
    EXPECT_EQ(other.output(), alone.output()) << kernel.name;
  }
}

TEST(Attend, EmptyBatchesAreFine) {
  Runner none("q=f32 heads=2:1 d=8 page=4 reqs=0@3");
  EXPECT_TRUE(none.run().ok());
}

}  // namespace
}  // namespace quire
