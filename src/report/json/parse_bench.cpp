// SPDX-License-Identifier: Apache-2.0
// Reads the JSON of `quire bench` back into a report. Reports of earlier versions lack some keys; keys for comparison are
// required.
#include <new>
#include <utility>

#include "quire/report.hpp"
#include "report/json/json.h"
#include "text/formatted.h"

namespace quire {
namespace {

using report::Json;

/// Replaces `value` if the key is there.
template <typename T>
void read(const Json& from, const char* key, T& value) {
  if (const auto at = from.find(key); at != from.end() && !at->is_null()) at->get_to(value);
}

template <typename T>
void demand(const Json& from, const char* key, T& value) {
  from.at(key).get_to(value);
}

/// The enumerator of a name; the first one if there is none of this name.
template <typename Enum>
Enum enum_of(const std::string& text) {
  for (int i = 0; !name(static_cast<Enum>(i)).empty(); ++i)
    if (name(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  return Enum{};
}

BenchMachine machine_from(const Json& from) {
  BenchMachine m;
  demand(from, "cpu", m.cpu);
  demand(from, "features", m.features);
  demand(from, "cores", m.cores);
  demand(from, "l1_bytes", m.l1_bytes);
  demand(from, "l2_bytes", m.l2_bytes);
  demand(from, "l3_bytes", m.l3_bytes);
  read(from, "compiler", m.compiler);
  return m;
}

Ceilings ceilings_from(const Json& from) {
  Ceilings c;
  demand(from, "threads", c.threads);
  demand(from, "drift", c.drift);
  read(from, "loops", c.loops);
  for (const Json& r : from.value("reads", Json::array())) {
    Ceilings::Read rung;
    demand(r, "bytes", rung.bytes);
    demand(r, "stream_gbs", rung.stream_gbs);
    demand(r, "gather_gbs", rung.gather_gbs);
    c.reads.push_back(rung);
  }
  read(from, "fma_gflops", c.fma_gflops);
  read(from, "bf16_dot_gflops", c.bf16_dot_gflops);
  read(from, "amx_gflops", c.amx_gflops);
  read(from, "mma_gflops", c.mma_gflops);
  read(from, "ping_pong_ns", c.ping_pong_ns);
  return c;
}

Floor floor_from(const Json& from) {
  Floor f;
  demand(from, "seconds", f.seconds);
  read(from, "memory_seconds", f.memory_seconds);
  read(from, "compute_seconds", f.compute_seconds);
  read(from, "read_gbs", f.read_gbs);
  read(from, "compute_gflops", f.compute_gflops);
  read(from, "compute", f.compute);
  return f;
}

Interval interval_from(const Json& from) {
  Interval i;
  demand(from, "median", i.median);
  demand(from, "low", i.low);
  demand(from, "high", i.high);
  read(from, "blocks", i.blocks);
  return i;
}

BenchResult result_from(const Json& from) {
  BenchResult r;
  demand(from, "asked_kernel", r.variant.kernel);
  demand(from, "threads", r.variant.threads);
  demand(from, "batch_invariant", r.variant.batch_invariant);
  r.status = enum_of<BenchStatus>(from.at("status").get<std::string>());
  read(from, "reason", r.reason);
  demand(from, "kernel", r.kernel);
  read(from, "plan", r.plan);
  read(from, "plan_seconds", r.plan_seconds);
  r.seconds = interval_from(from.at("seconds"));
  r.clock = enum_of<BenchClock>(from.value("clock", ""));
  read(from, "calls", r.calls);
  read(from, "disturbed", r.disturbed);
  read(from, "block_seconds", r.block_seconds);
  read(from, "gbs", r.gbs);
  read(from, "gflops", r.gflops);
  r.floor = floor_from(from.at("floor"));
  read(from, "of_floor", r.of_floor);
  read(from, "of_gather", r.of_gather);
  read(from, "rows_compared", r.rows_compared);
  read(from, "rows_total", r.rows_total);
  read(from, "worst_ratio", r.worst_ratio);
  return r;
}

BenchCaseResult case_from(const Json& from) {
  BenchCaseResult c;
  demand(from, "name", c.name);
  demand(from, "line", c.line);
  read(from, "kv_bytes", c.kv_bytes);
  read(from, "flops", c.flops);
  const Json rotation = from.value("rotation", Json::object());
  read(rotation, "copies", c.copies);
  read(rotation, "working_set_bytes", c.working_set_bytes);
  for (const Json& r : from.at("results")) c.results.push_back(result_from(r));
  return c;
}

BenchReport report_from(const Json& from) {
  BenchReport report;
  read(from, "ok", report.ok);
  read(from, "commit", report.commit);
  read(from, "date", report.date);
  read(from, "seconds_per_result", report.seconds_per_result);
  read(from, "busy", report.busy);
  report.machine = machine_from(from.at("machine"));
  for (const Json& c : from.at("ceilings")) report.ceilings.push_back(ceilings_from(c));
  for (const Json& c : from.at("cases")) report.cases.push_back(case_from(c));
  return report;
}

}  // namespace

Result<BenchReport> parse_bench_report(std::string_view text) try {
  const Json document = Json::parse(text);
  if (!document.is_object() || document.value("schema", "") != "quire.bench/1")
    return Status(Code::parse_error, "not a report of `quire bench --json` (\"schema\": \"quire.bench/1\")");
  return report_from(document);
} catch (const std::bad_alloc&) {
  return Status(Code::out_of_memory, formatted("not enough memory for a report of {} bytes", text.size()));
} catch (const Json::exception& error) {
  const std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
  const std::size_t id = what.find("] ");
  return Status(Code::parse_error, formatted("{:.300}", what.substr(id == std::string_view::npos ? 0 : id + 2)));
}

}  // namespace quire
