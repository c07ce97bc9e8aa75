// SPDX-License-Identifier: Apache-2.0
// The report as JSON: everything that was measured, with what is needed to judge it. bench.md lists the keys.
#include <utility>

#include "quire/report.hpp"
#include "report/json/json.h"

namespace quire::report {
namespace {

Json machine_json(const BenchMachine& m) {
  return {{"cpu", m.cpu},           {"features", m.features}, {"cores", m.cores},      {"l1_bytes", m.l1_bytes},
          {"l2_bytes", m.l2_bytes}, {"l3_bytes", m.l3_bytes}, {"compiler", m.compiler}};
}

Json ceilings_json(const std::vector<Ceilings>& all) {
  Json list = Json::array();
  for (const Ceilings& c : all) {
    Json reads = Json::array();
    for (const Ceilings::Read& r : c.reads)
      reads.push_back({{"bytes", r.bytes}, {"stream_gbs", r.stream_gbs}, {"gather_gbs", r.gather_gbs}});
    list.push_back({{"threads", c.threads},
                    {"loops", c.loops},
                    {"reads", std::move(reads)},
                    {"fma_gflops", c.fma_gflops},
                    {"bf16_dot_gflops", c.bf16_dot_gflops},
                    {"amx_gflops", c.amx_gflops},
                    {"mma_gflops", c.mma_gflops},
                    {"ping_pong_ns", c.ping_pong_ns},
                    {"drift", c.drift}});
  }
  return list;
}

Json interval_json(const Interval& i) { return {{"median", i.median}, {"low", i.low}, {"high", i.high}, {"blocks", i.blocks}}; }

Json floor_json(const Floor& f) {
  return {{"seconds", f.seconds},   {"memory_seconds", f.memory_seconds}, {"compute_seconds", f.compute_seconds},
          {"read_gbs", f.read_gbs}, {"compute_gflops", f.compute_gflops}, {"compute", f.compute}};
}

Json result_json(const BenchResult& r) {
  return {{"asked_kernel", r.variant.kernel},
          {"threads", r.variant.threads},
          {"batch_invariant", r.variant.batch_invariant},
          {"status", name(r.status)},
          {"reason", r.reason},
          {"kernel", r.kernel},
          {"plan", r.plan},
          {"plan_seconds", r.plan_seconds},
          {"seconds", interval_json(r.seconds)},
          {"clock", name(r.clock)},
          {"calls", r.calls},
          {"disturbed", r.disturbed},
          {"block_seconds", r.block_seconds},
          {"gbs", r.gbs},
          {"gflops", r.gflops},
          {"floor", floor_json(r.floor)},
          {"of_floor", r.of_floor},
          {"of_gather", r.of_gather},
          {"rows_compared", r.rows_compared},
          {"rows_total", r.rows_total},
          {"worst_ratio", r.worst_ratio}};
}

Json bench_case_json(const BenchCaseResult& c) {
  Json results = Json::array();
  for (const BenchResult& r : c.results) results.push_back(result_json(r));
  return {{"name", c.name},
          {"line", c.line},
          {"kv_bytes", c.kv_bytes},
          {"flops", c.flops},
          {"rotation",
           {{"copies", c.copies},
            {"working_set_bytes", c.working_set_bytes},
            {"kind", c.copies > 1 ? "from memory: copies of K and V in turn" : "in cache: one copy of K and V"}}},
          {"results", std::move(results)}};
}

}  // namespace

Json json_of(const BenchReport& report) {
  Json cases = Json::array();
  for (const BenchCaseResult& c : report.cases) cases.push_back(bench_case_json(c));
  return {{"schema", "quire.bench/1"},
          {"quire_bench", 1},
          {"ok", report.ok},
          {"version", QUIRE_VERSION},
          {"commit", report.commit},
          {"date", report.date},
          {"seconds_per_result", report.seconds_per_result},
          {"busy", report.busy},
          {"machine", machine_json(report.machine)},
          {"ceilings", ceilings_json(report.ceilings)},
          {"cases", std::move(cases)}};
}

Json json_of(const BenchComparison& comparison) {
  Json changes = Json::array();
  for (const BenchChange& c : comparison.changes)
    changes.push_back({{"name", c.name},
                       {"line", c.line},
                       {"asked_kernel", c.variant.kernel},
                       {"threads", c.variant.threads},
                       {"batch_invariant", c.variant.batch_invariant},
                       {"ratio", c.ratio},
                       {"low", c.low},
                       {"high", c.high},
                       {"verdict", name(c.verdict)},
                       {"reason", c.reason}});
  return {{"schema", "quire.bench_compare/1"},
          {"changes", std::move(changes)},
          {"only_old", comparison.only_old},
          {"only_new", comparison.only_new}};
}

}  // namespace quire::report

namespace quire {

std::string to_json(const BenchReport& report) { return report::printed(report::json_of(report)); }
std::string to_json(const BenchComparison& comparison) { return report::printed(report::json_of(comparison)); }

}  // namespace quire
