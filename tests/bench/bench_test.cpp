// SPDX-License-Identifier: Apache-2.0
// bench() end to end on small problems, its JSON, and the standing workloads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/ceilings/loops.h"
#include "bench/driver.h"
#include "quire/plan.hpp"
#include "quire/tools/bench.hpp"
#include "quire/tools/report.hpp"
#include "semantics/dtype.h"

namespace quire::test {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;

const std::string kMixed = "q=bf16 kv=bf16 heads=4:2 d=32 page=16 layout=hnd lse=1 reqs=9@60,1@90";

BenchOptions quick() {
  BenchOptions options;
  options.seconds = 0.01;
  options.threads = {1};
  return options;
}

TEST(Bench, TimesAndVerifiesEveryVariant) {
  BenchOptions options = quick();
  options.threads = {1, 2};
  options.kernels = {"", "cpu_generic"};
  options.batch_invariant = true;
  const std::vector<BenchInput> inputs = {{.name = "mixed", .line = kMixed, .capture = {}}};
  const Result<BenchReport> report = bench(inputs, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->ok) << to_string(report.value());
  ASSERT_EQ(report->cases.size(), 1u);
  EXPECT_EQ(report->cases[0].results.size(), 8u);
  for (const BenchResult& r : report->cases[0].results) {
    EXPECT_EQ(r.status, BenchStatus::ok) << r.reason;
    EXPECT_EQ(r.rows_compared, 10);
    EXPECT_GT(r.worst_ratio, 0);
    EXPECT_GT(r.seconds.low, 0);
    EXPECT_LE(r.seconds.low, r.seconds.median);
    EXPECT_GE(r.seconds.high, r.seconds.median);
    EXPECT_GE(r.seconds.blocks, 6);
    EXPECT_GT(r.floor.seconds, 0);
    EXPECT_GT(r.plan_seconds, 0);
    EXPECT_THAT(r.plan, HasSubstr(r.kernel));
  }
  EXPECT_EQ(report->cases[0].results[2].kernel, "cpu_generic");
  EXPECT_THAT(to_string(report.value()), HasSubstr("OK: 8 verified"));
}

TEST(Bench, RowsThatRoundWeightsAreJudgedByTheToleranceThatPaysForIt) {
  const Problem problem = parse_problem_line("q=f16 heads=4:2 d=16 page=4 reqs=9@30,1@12")->problem;
  const Case c = make_case(parse_problem_line("q=f16 heads=4:2 d=16 page=4 reqs=9@30,1@12 seed=1").value()).value();
  const Reference r = reference(c.batch, c.cache, c.options).value();
  for (std::size_t i = 0; i < r.out.size(); ++i)  // error: most of what rounding the weights to f16 may cost
    semantics::store(c.batch.output.data, DType::f16, static_cast<std::int64_t>(i),
                     static_cast<float>(r.out[i] + 0.9 * 0x1p-11 * r.abs_pv[i]));
  const bench_detail::Expected expected = bench_detail::Expected::make(c, problem, 1).value();
  std::vector<bool> rounded(10, true);
  EXPECT_FALSE(expected.judge(c.batch.output, {}).ok);
  EXPECT_TRUE(expected.judge(c.batch.output, {}, rounded).ok);
  rounded.back() = false;
  EXPECT_FALSE(expected.judge(c.batch.output, {}, rounded).ok) << "the decode row is judged strictly";
}

TEST(Bench, JsonSaysWhatTheReportSays) {
  const std::vector<BenchInput> inputs = {{.name = {}, .line = kMixed, .capture = {}}};
  const Result<BenchReport> report = bench(inputs, quick());
  ASSERT_TRUE(report.ok());
  const json parsed = json::parse(to_json(report.value()));
  EXPECT_EQ(parsed["schema"], "quire.bench/1");
  EXPECT_EQ(parsed["machine"]["cpu"], report->machine.cpu);
  const json& result = parsed["cases"][0]["results"][0];
  const BenchResult& r = report->cases[0].results[0];
  EXPECT_EQ(parsed["cases"][0]["line"], to_string(parse_problem_line(kMixed).value()));
  EXPECT_EQ(result["seconds"]["median"].get<double>(), r.seconds.median);
  EXPECT_EQ(result["block_seconds"].get<std::vector<double>>(), r.block_seconds);
  EXPECT_EQ(result["of_floor"].get<double>(), r.of_floor);
  EXPECT_EQ(parsed["ceilings"][0]["reads"].size(), report->ceilings[0].reads.size());
  const Result<BenchComparison> same = compare_bench(report.value(), report.value());
  ASSERT_TRUE(same.ok()) << same.status().message();
  ASSERT_EQ(same->changes.size(), 1u);
  EXPECT_EQ(same->changes[0].ratio, 1.0);
  EXPECT_THAT(same->changes[0].verdict, AnyOf(BenchChangeVerdict::same, BenchChangeVerdict::ambiguous));
}

TEST(Bench, RefusesWhatCannotBeTimed) {
  const std::vector<BenchInput> bad_line = {{.name = {}, .line = "q=bf17", .capture = {}}};
  EXPECT_EQ(bench(bad_line, quick()).status().code(), Code::parse_error);
  const std::vector<BenchInput> no_file = {{.name = {}, .line = {}, .capture = "/nowhere.safetensors"}};
  EXPECT_EQ(bench(no_file, quick()).status().code(), Code::io_error);
  BenchOptions options = quick();
  options.seconds = 0;
  EXPECT_EQ(bench({}, options).status().code(), Code::invalid_argument);
}

TEST(Bench, AKernelThatIsNotHereIsRefusedAndNothingIsOk) {
  BenchOptions options = quick();
  options.kernels = {"no_such_kernel"};
  const std::vector<BenchInput> inputs = {{.name = {}, .line = kMixed, .capture = {}}};
  const Result<BenchReport> report = bench(inputs, options);
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->ok);
  EXPECT_EQ(report->cases[0].results[0].status, BenchStatus::refused);
  EXPECT_THAT(report->cases[0].results[0].reason, HasSubstr("no kernel of that name"));
}

TEST(Bench, StopsWhenAsked) {
  BenchOptions options = quick();
  int asked = 0;
  options.progress = [&](const std::string&) { return ++asked < 4; };
  const std::vector<BenchInput> inputs(3, BenchInput{.name = {}, .line = kMixed, .capture = {}});
  const Result<BenchReport> report = bench(inputs, options);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->cases.empty());
}

TEST(Ceilings, AreRatesOfThisPlanet) {
  const std::vector<BenchInput> inputs = {{.name = {}, .line = kMixed, .capture = {}}};
  BenchOptions options = quick();
  options.threads = {2};
  const Result<BenchReport> report = bench(inputs, options);
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->ceilings.size(), 2u) << "one thread is always measured";
  for (const Ceilings& c : report->ceilings) {
    for (const Ceilings::Read& r : c.reads) {
      EXPECT_THAT(r.stream_gbs, testing::AllOf(testing::Gt(0.05), testing::Lt(1e4)));
      EXPECT_THAT(r.gather_gbs, testing::AllOf(testing::Gt(0.05), testing::Lt(1e4)));
    }
    EXPECT_THAT(c.fma_gflops, testing::AllOf(testing::Gt(0.1), testing::Lt(1e5)));
    EXPECT_EQ(c.bf16_dot_gflops > 0, (host_device().cpu_features & kAvx512Bf16) != 0);
    EXPECT_EQ(c.amx_gflops > 0, bench_detail::host_amx() != nullptr);
    EXPECT_EQ(c.ping_pong_ns > 0, c.threads > 1);
  }
}

TEST(Workloads, AreAllThereAndAllPlannable) {
  const std::vector<std::string> names = workload_names();
  for (const char* name : {"W1", "W2", "W3", "W4", "W5", "W1s", "W2s", "W3s", "W4s", "W5s", "targets"})
    EXPECT_THAT(names, Contains(name));
  for (const std::string& name : names) {
    const Result<std::vector<BenchInput>> inputs = workload(name);
    ASSERT_TRUE(inputs.ok()) << inputs.status().message();
    EXPECT_EQ(inputs->size(), name == "targets" ? 10u : 4u) << name;
    for (const BenchInput& input : inputs.value()) EXPECT_TRUE(plan(parse_problem_line(input.line)->problem, host_device()).ok());
  }
  EXPECT_EQ(workload("W1")->front().name, "W1, Llama-3.1-8B");
  EXPECT_EQ(workload("W1")->front().line, workload("targets")->back().line);
  const Problem w1 = parse_problem_line(workload("W1")->front().line)->problem;
  EXPECT_EQ(w1.reqs.size(), 80u);
  EXPECT_EQ(w1.num_tokens(), 512);
  EXPECT_THAT(workload("W6").status().message(), HasSubstr("there are W1, "));
}

}  // namespace
}  // namespace quire::test
