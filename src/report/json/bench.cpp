// SPDX-License-Identifier: Apache-2.0
// The report as JSON, and back: everything that was measured, with what is needed to judge it. bench.md lists the keys.
//
// A report must have the keys that comparisons need.
#include <new>

#include "quire/tools/report.hpp"
#include "report/json/keys.h"
#include "text/formatted.h"

namespace quire::report {

template <typename Keys, Of<BenchMachine> Machine>
void keys_of(Keys& keys, Machine& m) {
  keys("cpu", m.cpu, "features", m.features, "cores", m.cores, "l1_bytes", m.l1_bytes, "l2_bytes", m.l2_bytes, "l3_bytes",
       m.l3_bytes);
  keys.later("compiler", m.compiler);
}

template <typename Keys, Of<Ceilings::Read> Read>
void keys_of(Keys& keys, Read& r) {
  keys("bytes", r.bytes, "stream_gbs", r.stream_gbs, "gather_gbs", r.gather_gbs);
}

template <typename Keys, Of<Ceilings> C>
void keys_of(Keys& keys, C& c) {
  keys("threads", c.threads);
  keys.later("loops", c.loops, "reads", c.reads, "fma_gflops", c.fma_gflops, "bf16_dot_gflops", c.bf16_dot_gflops, "amx_gflops",
             c.amx_gflops, "mma_gflops", c.mma_gflops, "ping_pong_ns", c.ping_pong_ns);
  keys("drift", c.drift);
}

template <typename Keys, Of<Interval> I>
void keys_of(Keys& keys, I& i) {
  keys("median", i.median, "low", i.low, "high", i.high);
  keys.later("blocks", i.blocks);
}

template <typename Keys, Of<Floor> F>
void keys_of(Keys& keys, F& f) {
  keys("seconds", f.seconds);
  keys.later("memory_seconds", f.memory_seconds, "compute_seconds", f.compute_seconds, "read_gbs", f.read_gbs, "compute_gflops",
             f.compute_gflops, "compute", f.compute);
}

template <typename Keys, Of<BenchVariant> Variant>
void keys_of(Keys& keys, Variant& v) {
  keys("asked_kernel", v.kernel, "threads", v.threads, "batch_invariant", v.batch_invariant);
}

template <typename Keys, Of<BenchResult> R>
void keys_of(Keys& keys, R& r) {
  keys_of(keys, r.variant);
  keys("status", r.status);
  keys.later("reason", r.reason);
  keys("kernel", r.kernel);
  keys.later("plan", r.plan, "plan_seconds", r.plan_seconds);
  keys("seconds", r.seconds);
  keys.later("clock", r.clock, "calls", r.calls, "disturbed", r.disturbed, "block_seconds", r.block_seconds, "gbs", r.gbs,
             "gflops", r.gflops);
  keys("floor", r.floor);
  keys.later("of_floor", r.of_floor, "of_gather", r.of_gather, "rows_compared", r.rows_compared, "rows_total", r.rows_total,
             "worst_ratio", r.worst_ratio);
}

/// How a case's K and V are read, part of a BenchCaseResult.
template <typename Case>
struct Rotation {
  Case& c;
};
template <typename Keys, typename Case>
void keys_of(Keys& keys, const Rotation<Case>& r) {
  keys.later("copies", r.c.copies, "working_set_bytes", r.c.working_set_bytes);
  keys.says("kind", r.c.copies > 1 ? "from memory: copies of K and V in turn" : "in cache: one copy of K and V");
}

template <typename Keys, Of<BenchCaseResult> Case>
void keys_of(Keys& keys, Case& c) {
  keys("name", c.name, "line", c.line);
  keys.later("kv_bytes", c.kv_bytes, "flops", c.flops);
  Rotation<Case> rotation{c};
  keys.later("rotation", rotation);
  keys("results", c.results);
}

template <typename Keys, Of<BenchReport> R>
void keys_of(Keys& keys, R& report) {
  keys.says("schema", "quire.bench/1");
  keys.says("quire_bench", 1);
  keys.later("ok", report.ok);
  keys.says("version", QUIRE_VERSION);
  keys.later("commit", report.commit, "date", report.date, "seconds_per_result", report.seconds_per_result, "busy", report.busy);
  keys("machine", report.machine, "ceilings", report.ceilings, "cases", report.cases);
}

template <typename Keys, Of<BenchChange> Change>
void keys_of(Keys& keys, Change& c) {
  keys("name", c.name, "line", c.line);
  keys_of(keys, c.variant);
  keys("ratio", c.ratio, "low", c.low, "high", c.high, "verdict", c.verdict, "reason", c.reason);
}

template <typename Keys, Of<BenchComparison> Comparison>
void keys_of(Keys& keys, Comparison& c) {
  keys.says("schema", "quire.bench_compare/1");
  keys("changes", c.changes, "only_old", c.only_old, "only_new", c.only_new);
}

Json json_of(const BenchReport& report) { return Writer::written(report); }
Json json_of(const BenchComparison& comparison) { return Writer::written(comparison); }

}  // namespace quire::report

namespace quire {

using report::Json;

std::string to_json(const BenchReport& report) { return report::printed(report::json_of(report)); }
std::string to_json(const BenchComparison& comparison) { return report::printed(report::json_of(comparison)); }

Result<BenchReport> parse_bench_report(std::string_view text) try {
  const Json document = Json::parse(text);
  if (!document.is_object() || document.value("schema", "") != "quire.bench/1")
    return Status(Code::parse_error, "not a report of `quire bench --json` (\"schema\": \"quire.bench/1\")");
  BenchReport report;
  report::Reader::read(document, report);
  return report;
} catch (const std::bad_alloc&) {
  return Status(Code::out_of_memory, formatted("not enough memory for a report of {} bytes", text.size()));
} catch (const Json::exception& error) {
  return Status(Code::parse_error, formatted("{:.300}", report::complaint(error)));
}

}  // namespace quire
