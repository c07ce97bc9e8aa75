// SPDX-License-Identifier: Apache-2.0
// Verdicts on reports whose difference is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "quire/tools/report.hpp"

namespace quire::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// A report with one result; times relative to 1 ms.
json report(double median, double low, double high, double floor_seconds = 0.5e-3, double drift = 0.01) {
  json result = {{"asked_kernel", ""},
                 {"threads", 1},
                 {"batch_invariant", false},
                 {"status", "ok"},
                 {"kernel", "cpu_avx512"},
                 {"seconds", {{"median", median * 1e-3}, {"low", low * 1e-3}, {"high", high * 1e-3}, {"blocks", 15}}},
                 {"floor", {{"seconds", floor_seconds}}}};
  json c = {{"name", "W1"}, {"line", "q=f32 heads=1 d=1 page=1 reqs=1"}, {"results", {result}}};
  json machine = {{"cpu", "Test"},        {"features", "avx2"},  {"cores", 2},
                  {"l1_bytes", 32 << 10}, {"l2_bytes", 1 << 20}, {"l3_bytes", 32 << 20}};
  return {{"schema", "quire.bench/1"}, {"machine", machine}, {"ceilings", {{{"threads", 1}, {"drift", drift}}}}, {"cases", {c}}};
}

std::string verdict(const json& before, const json& after) {
  const Result<BenchComparison> c = compare_bench(before.dump(), after.dump());
  if (!c.ok()) return c.status().message();
  return c->changes.size() == 1 ? std::string(name(c->changes[0].verdict)) : "not one change";
}

TEST(CompareBench, CallsEveryKindOfChangeByItsName) {
  const json base = report(1.0, 0.99, 1.01);
  EXPECT_EQ(verdict(base, base), "SAME");
  EXPECT_EQ(verdict(base, report(0.8, 0.79, 0.81)), "FAST");
  EXPECT_EQ(verdict(base, report(1.3, 1.28, 1.31)), "SLOW");
  EXPECT_EQ(verdict(base, report(0.985, 0.98, 0.989)), "SAME") << "intervals apart, but less than 2 %";
  EXPECT_EQ(verdict(base, report(0.9, 0.8, 1.0)), "AMBIGUOUS") << "10 % faster inside overlapping intervals";
  EXPECT_EQ(verdict(base, report(1.0, 0.8, 1.2)), "AMBIGUOUS") << "equal medians prove nothing if the intervals are wide";
}

TEST(CompareBench, AMachineThatMovedIsNoChangeOfOurs) {
  const json base = report(1.0, 0.99, 1.01);
  EXPECT_EQ(verdict(base, report(0.8, 0.79, 0.81, 0.4e-3)), "AMBIGUOUS") << "the floor moved as much";
  EXPECT_EQ(verdict(base, report(0.8, 0.79, 0.81, 0.49e-3)), "FAST") << "the floor hardly moved";
  EXPECT_EQ(verdict(base, report(0.8, 0.79, 0.81, 0.7e-3)), "FAST") << "in spite of a slower machine";
  EXPECT_EQ(verdict(base, report(1.3, 1.28, 1.31, 0.65e-3)), "AMBIGUOUS");
}

TEST(CompareBench, AChangeWithinTheDriftOfARunProvesNothing) {
  const json base = report(1.0, 0.99, 1.01);
  EXPECT_EQ(verdict(base, report(0.8, 0.79, 0.81, 0.5e-3, /*drift=*/0.25)), "AMBIGUOUS");
  EXPECT_EQ(verdict(report(1.0, 0.99, 1.01, 0.5e-3, 0.25), report(1.2, 1.19, 1.21)), "AMBIGUOUS");
  EXPECT_EQ(verdict(base, report(0.5, 0.49, 0.51, 0.5e-3, 0.25)), "FAST");
}

/// Every sign of other processes by itself.
TEST(CompareBench, ABusyMachineIsNeverSlow) {
  const json base = report(1.0, 0.99, 1.01), slow = report(2.25, 2.2, 2.3);
  ASSERT_EQ(verdict(base, slow), "SLOW");
  json interrupted = slow, calm = slow, hops = slow, impossible = slow;
  interrupted["cases"][0]["results"][0].update({{"calls", 41}, {"disturbed", 26}});
  calm["cases"][0]["results"][0].update({{"calls", 41}, {"disturbed", 2}, {"of_floor", 0.53}});
  hops["ceilings"][0]["ping_pong_ns"] = 6178.0;
  impossible["cases"][0]["results"][0]["of_floor"] = 1.07;
  EXPECT_EQ(verdict(base, interrupted), "AMBIGUOUS");
  EXPECT_EQ(verdict(interrupted, base), "AMBIGUOUS") << "whichever of the two it was";
  EXPECT_EQ(verdict(base, hops), "AMBIGUOUS");
  EXPECT_EQ(verdict(base, impossible), "AMBIGUOUS");
  EXPECT_EQ(verdict(base, report(2.25, 2.2, 2.3, 0.5e-3, /*drift=*/0.57)), "AMBIGUOUS") << "although the change is larger";
  EXPECT_EQ(verdict(base, calm), "SLOW");
  EXPECT_THAT(to_string(compare_bench(base.dump(), interrupted.dump()).value()),
              HasSubstr("the new run: this machine was busy: 26 of 41 calls were interrupted"));
}

TEST(CompareBench, NothingInCommonIsAnError) {
  json other = report(1.0, 0.99, 1.01);
  other["cases"][0]["line"] = "q=f32 heads=2 d=1 page=1 reqs=1";
  const Result<BenchComparison> nothing = compare_bench(report(1.0, 0.99, 1.01).dump(), other.dump());
  EXPECT_EQ(nothing.status().code(), Code::parse_error);
  EXPECT_THAT(nothing.status().message(), HasSubstr("nothing to compare: of 1 results in the old report and 1 in the new one"));
}

TEST(CompareBench, ALongProblemLineIsCutForPeople) {
  json longer = report(1.0, 0.99, 1.01);
  longer["cases"][0]["line"] = "q=f32 heads=1 d=1 page=1 reqs=1" + std::string(600, '7');
  const Result<BenchComparison> same = compare_bench(longer.dump(), longer.dump());
  EXPECT_LT(to_string(same.value()).find('\n'), 260u);
  EXPECT_EQ(same->changes[0].line.size(), 631u) << "and whole for programs";
}

TEST(CompareBench, AWrongOutputIsNeverFast) {
  json wrong = report(0.5, 0.49, 0.51);
  wrong["cases"][0]["results"][0]["status"] = "wrong";
  EXPECT_EQ(verdict(report(1.0, 0.99, 1.01), wrong), "AMBIGUOUS");
  EXPECT_EQ(verdict(wrong, report(1.0, 0.99, 1.01)), "AMBIGUOUS");
}

TEST(CompareBench, RefusesOtherMachinesUnlessForced) {
  const json base = report(1.0, 0.99, 1.01);
  for (const char* key : {"cpu", "features", "cores", "l2_bytes"}) {
    json other = report(0.5, 0.49, 0.51);
    other["machine"][key] = other["machine"][key].is_string() ? json("another") : json(1);
    const Result<BenchComparison> refused = compare_bench(base.dump(), other.dump());
    EXPECT_EQ(refused.status().code(), Code::invalid_argument) << key;
    EXPECT_THAT(refused.status().message(), HasSubstr("two different machines"));
    EXPECT_TRUE(compare_bench(base.dump(), other.dump(), /*force=*/true).ok());
  }
}

TEST(CompareBench, CountsResultsWithoutACounterpart) {
  const json base = report(1.0, 0.99, 1.01);
  json more = base;
  more["cases"][0]["results"].push_back(more["cases"][0]["results"][0]);
  more["cases"][0]["results"][1]["threads"] = 2;
  EXPECT_EQ(compare_bench(base.dump(), more.dump())->only_new, 1);
  EXPECT_EQ(compare_bench(more.dump(), base.dump())->only_old, 1);
}

TEST(CompareBench, IsJsonToo) {
  const json parsed = json::parse(to_json(compare_bench(report(1.0, 0.99, 1.01).dump(), report(0.8, 0.79, 0.81).dump()).value()));
  EXPECT_EQ(parsed["schema"], "quire.bench_compare/1");
  EXPECT_EQ(parsed["changes"][0]["verdict"], "FAST");
  EXPECT_DOUBLE_EQ(parsed["changes"][0]["ratio"], 0.8);
}

TEST(CompareBench, SaysWhichReportIsNone) {
  const std::string good = report(1.0, 0.99, 1.01).dump();
  EXPECT_THAT(compare_bench("{", good).status().message(), HasSubstr("the old report: parse error"));
  EXPECT_THAT(compare_bench(good, "{}").status().message(), HasSubstr("the new report: not a report of `quire bench"));
  EXPECT_EQ(compare_bench(good, R"({"schema": "quire.bench/1"})").status().code(), Code::parse_error);
  json wrong_type = report(1, 1, 1);
  wrong_type["cases"][0]["results"][0]["seconds"]["median"] = "fast";
  EXPECT_EQ(compare_bench(good, wrong_type.dump()).status().code(), Code::parse_error);
}

}  // namespace
}  // namespace quire::test
