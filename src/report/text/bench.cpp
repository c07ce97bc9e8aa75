// SPDX-License-Identifier: Apache-2.0
// The report for a terminal: the machine, its ceilings, a block per case.
#include <map>

#include "quire/tools/report.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::string size_text(std::int64_t bytes) {
  if (bytes <= 0) return "unknown";
  return bytes % kMiB == 0 || bytes > 10 * kMiB ? formatted("{} MiB", bytes / kMiB) : formatted("{} KiB", bytes >> 10);
}

std::string percent(double share) { return formatted("{:.0f} %", 100 * share); }

std::string rate(double value) { return value <= 0 ? "-" : formatted("{:.{}f}", value, value < 100 ? 1 : 0); }

/// A problem line for one line of a terminal: a batch of a hundred requests would bury the numbers. JSON has it whole.
std::string shortened(const std::string& line) {
  constexpr std::size_t kMax = 160;
  return line.size() <= kMax ? line : line.substr(0, kMax) + "...";
}

/// "1.23 ms"
std::string time_text(double seconds) {
  if (seconds <= 0) return "0";
  if (seconds < 1e-3) return formatted("{:.{}f} us", seconds * 1e6, seconds < 1e-4 ? 2 : 1);
  if (seconds < 1) return formatted("{:.{}f} ms", seconds * 1e3, seconds < 0.1 ? 3 : 1);
  return formatted("{:.3f} s", seconds);
}

/// "cpu_avx512, 2 threads, invariant"
std::string variant_text(const BenchVariant& v, const std::string& kernel) {
  const std::string threads =
      v.threads == kWholeDevice ? std::string() : formatted(", {} thread{}", v.threads, v.threads == 1 ? "" : "s");
  return formatted("{}{}{}", kernel.empty() ? "planned" : kernel, threads, v.batch_invariant ? ", invariant" : "");
}

std::string machine_text(const BenchMachine& m) {
  return formatted("machine   {}, {} core{}, {}, L2 {}, L3 {}, {}\n", m.cpu, m.cores, m.cores == 1 ? "" : "s", m.features,
                   size_text(m.l2_bytes), size_text(m.l3_bytes), m.compiler);
}

std::string device_ceilings_text(const Ceilings& c) {
  std::string text = "ceilings ";
  for (const Ceilings::Read& r : c.reads) text += formatted(" read {} GB/s of {},", rate(r.stream_gbs), size_text(r.bytes));
  return text + formatted(" f32 FMA {} GFLOP/s, 16-bit mma.sync {} GFLOP/s, drift {}\n", rate(c.fma_gflops), rate(c.mma_gflops),
                          percent(c.drift));
}

std::string ceilings_text(const std::vector<Ceilings>& all) {
  if (!all.empty() && all.front().threads == kWholeDevice) return device_ceilings_text(all.front());
  std::string text = formatted("ceilings  {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}\n", "threads", "set", "read",
                               "gather", "f32 FMA", "bf16 dot", "bf16 AMX", "hop", "drift");
  text += formatted("          {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}\n", "", "", "GB/s", "GB/s", "GFLOP/s",
                    "GFLOP/s", "GFLOP/s", "ns", "");
  for (const Ceilings& c : all)
    for (const Ceilings::Read& r : c.reads) {
      const bool last = &r == &c.reads.back();
      const std::string rest = last ? formatted(" {:>9} {:>9} {:>9} {:>9} {:>6}", rate(c.fma_gflops), rate(c.bf16_dot_gflops),
                                                rate(c.amx_gflops), rate(c.ping_pong_ns), percent(c.drift))
                                    : std::string();
      text += formatted("          {:>7} {:>9} {:>9} {:>9}{}\n", c.threads, size_text(r.bytes), rate(r.stream_gbs),
                        rate(r.gather_gbs), rest);
    }
  return text;
}

std::string status_text(const BenchResult& r) {
  if (r.status == BenchStatus::unverified) return "NOT VERIFIED";
  if (r.status == BenchStatus::wrong) return "WRONG: " + r.reason;
  return formatted("ok, {:.2g} of the tolerance in {} of {} rows", r.worst_ratio, r.rows_compared, r.rows_total);
}

std::string result_text(const BenchResult& r) {
  if (r.status == BenchStatus::refused)
    return formatted("  {}: refused: {}\n", variant_text(r.variant, r.variant.kernel), r.reason);
  std::string text =
      formatted("  {:<34} {:>10} [{}, {}]  {} GB/s  {} GFLOP/s\n", variant_text(r.variant, r.kernel), time_text(r.seconds.median),
                time_text(r.seconds.low), time_text(r.seconds.high), rate(r.gbs), rate(r.gflops));
  const bool mixed = r.floor.memory_seconds > 0 && r.floor.compute_seconds > 0;
  const std::string parts = mixed ? formatted(" = {} of reading + {} of {}", time_text(r.floor.memory_seconds),
                                              time_text(r.floor.compute_seconds), r.floor.compute)
                            : r.floor.memory_seconds > 0
                                ? formatted(" of reading at {} GB/s", rate(r.floor.read_gbs))
                                : formatted(" of {} at {} GFLOP/s", r.floor.compute, rate(r.floor.compute_gflops));
  text += formatted("    {} of the machine: floor {}{}", percent(r.of_floor), time_text(r.floor.seconds), parts);
  if (r.floor.compute_seconds <= 0 && r.of_gather > 0) text += formatted("; {} of the page gather", percent(r.of_gather));
  text += formatted("; plan {}\n    {}", time_text(r.plan_seconds), status_text(r));
  if (2 * r.disturbed > r.calls || r.clock == BenchClock::thread_cpu)
    text += formatted("; {} of {} calls disturbed, clock: {}", r.disturbed, r.calls, name(r.clock));
  return text + "\n";
}

std::string bench_case_text(const BenchCaseResult& c) {
  const std::string kind = c.copies > 1
                               ? formatted("{} copies in turn, {} in all: from memory", c.copies, size_text(c.working_set_bytes))
                               : std::string("one copy: as warm as caches keep it");
  std::string text = formatted("\ncase      {}{}\n  K and V {:.2f} MB visible, {:.3g} GFLOP; {}\n",
                               c.name.empty() ? std::string() : c.name + "  ", shortened(c.line),
                               static_cast<double>(c.kv_bytes) * 1e-6, c.flops * 1e-9, kind);
  for (const BenchResult& r : c.results) text += result_text(r);
  return text;
}

}  // namespace

std::string to_string(const BenchReport& report) {
  std::string text = report.busy.empty() ? std::string() : formatted("BUSY      {}\n", report.busy);
  text += machine_text(report.machine) + ceilings_text(report.ceilings);
  for (const BenchCaseResult& c : report.cases) text += bench_case_text(c);
  std::int64_t wrong = 0, refused = 0, unverified = 0, ok = 0;
  for (const BenchCaseResult& c : report.cases)
    for (const BenchResult& r : c.results)
      ++(r.status == BenchStatus::wrong     ? wrong
         : r.status == BenchStatus::refused ? refused
         : r.status == BenchStatus::ok      ? ok
                                            : unverified);
  text += formatted("\n{}: {} verified", report.ok ? "OK" : "FAIL", ok);
  if (wrong > 0) text += formatted(", {} WRONG", wrong);
  if (unverified > 0) text += formatted(", {} not verified", unverified);
  if (refused > 0) text += formatted(", {} refused", refused);
  return text + "\n";
}

std::string to_string(const BenchComparison& comparison) {
  std::string text;
  std::map<BenchChangeVerdict, int> counts;
  for (const BenchChange& c : comparison.changes) {
    ++counts[c.verdict];
    text +=
        formatted("{:<9} {:>6.1f} % [{:+.1f}, {:+.1f}]  {}  {}{}{}\n", name(c.verdict), 100 * (c.ratio - 1), 100 * (c.low - 1),
                  100 * (c.high - 1), variant_text(c.variant, c.variant.kernel), c.name.empty() ? std::string() : c.name + "  ",
                  shortened(c.line), c.reason.empty() ? "" : "  (" + c.reason + ")");
  }
  text += formatted("time {} FAST, {} SLOW, {} SAME, {} AMBIGUOUS", counts[BenchChangeVerdict::fast],
                    counts[BenchChangeVerdict::slow], counts[BenchChangeVerdict::same], counts[BenchChangeVerdict::ambiguous]);
  if (comparison.only_old + comparison.only_new > 0)
    text += formatted("; {} only in the old report, {} only in the new one", comparison.only_old, comparison.only_new);
  return text + "\n";
}

}  // namespace quire
