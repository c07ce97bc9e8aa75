// SPDX-License-Identifier: Apache-2.0
// See driver.h.
#include "bench/driver.h"

#include <algorithm>

#include "bench/ceilings/measure.h"
#include "bench/lane.h"
#include "text/formatted.h"
#include "text/utc.h"

namespace quire::bench_detail {
namespace {

std::string words_for(const BenchVariant& v) {
  return formatted("{}, {} thread{}{}", v.kernel.empty() ? "planned kernel" : v.kernel, v.threads, v.threads == 1 ? "" : "s",
                   v.batch_invariant ? ", batch-invariant" : "");
}

}  // namespace

BenchResult timed_result(const BenchVariant& variant, const Plan& plan, const Timing& timing, const BenchCaseResult& of,
                         const Problem& problem) {
  BenchResult r;
  r.variant = variant;
  r.kernel = plan.kernel;
  r.plan = to_string(plan);
  r.rows_total = problem.num_tokens();
  r.seconds = timing.seconds;
  r.clock = timing.clock;
  r.calls = timing.calls;
  r.disturbed = timing.disturbed;
  r.block_seconds = timing.blocks;
  if (r.seconds.median > 0) {
    r.gbs = static_cast<double>(of.kv_bytes) / r.seconds.median * 1e-9;
    r.gflops = of.flops / r.seconds.median * 1e-9;
  }
  if (!timing.status.ok()) r.status = BenchStatus::wrong, r.reason = "attend() failed: " + timing.status.message();
  if (timing.status.ok() && !timing.same_bits)
    r.status = BenchStatus::wrong, r.reason = "the bits of the output changed between blocks";
  return r;
}

void judge(BenchResult& r, const Expected& expected, const Tensor& output, const Tensor& lse, const std::vector<bool>& rounded) {
  const Comparison comparison = expected.judge(output, lse, rounded);
  r.rows_compared = expected.rows();
  r.worst_ratio = comparison.worst_ratio;
  if (r.status == BenchStatus::wrong) return;
  r.status = comparison.ok ? BenchStatus::ok : BenchStatus::wrong;
  if (!comparison.ok) r.reason = comparison.text;
}

namespace {

/// Parses a line, or reads a capture for its shape.
Result<Entry> entry_of(const BenchInput& input, std::int64_t l3_bytes, std::int64_t cold) {
  Entry entry;
  entry.input = input;
  if (input.capture.empty()) {
    const Result<ProblemLine> line = parse_problem_line(input.line);
    if (!line.ok()) return line.status();
    entry.problem = line->problem;
    entry.seed = line->seed;
    entry.input.line = to_string(line.value());  // canonical text, so that reports can be compared
  } else {
    const Result<Case> c = read_capture(input.capture);
    if (!c.ok()) return c.status();
    if (const Findings found = check(c->batch, c->cache, c->options, Depth::tables); !found.ok()) return found.status();
    entry.problem = problem_of(c->batch, c->cache, c->options);
  }
  entry.copies = copies_for(kv_bytes_of(entry.problem), l3_bytes, cold);
  return entry;
}

}  // namespace

Result<Case> case_of(const Entry& entry) {
  if (!entry.input.capture.empty()) return read_capture(entry.input.capture);
  const Result<ProblemLine> line = parse_problem_line(entry.input.line);
  if (!line.ok()) return line.status();
  return make_case(line.value());
}

std::int64_t Entry::working_set() const { return copies * kv_bytes_of(problem); }

Result<std::vector<Entry>> entries_of(std::span<const BenchInput> inputs, std::int64_t l3_bytes, std::int64_t cold) {
  std::vector<Entry> entries;
  for (const BenchInput& input : inputs) {
    Result<Entry> entry = entry_of(input, l3_bytes, cold);
    if (!entry.ok()) return entry.status();
    entries.push_back(std::move(entry).value());
  }
  return entries;
}

std::vector<BenchVariant> variants_of(const BenchOptions& options, int cores) {
  std::vector<int> threads = options.threads;
  if (threads.empty()) threads = cores > 1 ? std::vector<int>{1, cores} : std::vector<int>{1};
  std::vector<std::string> kernels = options.kernels;
  if (kernels.empty()) kernels.emplace_back();
  std::vector<BenchVariant> variants;
  for (const bool invariant : {false, true})
    for (const std::string& kernel : kernels)
      for (const int count : threads) {
        const BenchVariant variant{kernel, count, invariant};
        const auto same = [&](const BenchVariant& v) {
          return v.kernel == kernel && v.threads == count && v.batch_invariant == invariant;
        };
        if (invariant && !options.batch_invariant) continue;
        if (std::none_of(variants.begin(), variants.end(), same)) variants.push_back(variant);
      }
  return variants;
}

BenchCaseResult untimed(const Entry& entry, std::int64_t copies) {
  BenchCaseResult result;
  result.name = entry.input.name;
  result.line = entry.input.capture.empty() ? entry.input.line : to_string(entry.problem);
  result.kv_bytes = kv_bytes_of(entry.problem);
  result.flops = floor_of(entry.problem, 0, 1e-9).compute_seconds;  // FLOPs at one FLOP per second
  result.copies = copies;
  result.working_set_bytes = copies * result.kv_bytes;
  return result;
}

Result<BenchCaseResult> run_case(const Entry& entry, const std::vector<BenchVariant>& variants, const BenchOptions& options,
                                 const Say& say) {
  if (!say("making the data")) return BenchCaseResult{};
  const Result<Case> made = case_of(entry);
  if (!made.ok()) return made.status();
  const Case& c = made.value();
  Rotation rotation(c.cache, entry.copies);
  if (!rotation.ok()) return Status(Code::out_of_memory, "bench: not enough memory for a copy of the cache");
  BenchCaseResult result = untimed(entry, rotation.copies());

  std::vector<Lane> lanes = lanes_of<Lane>(variants, [&](const BenchVariant& variant) { return Lane::make(c, variant); }, result);
  std::string what = "timing";
  for (const Lane& lane : lanes) what += (what == "timing" ? " " : "; ") + words_for(lane.variant());
  const std::vector<Timing> timings = time_in_turns(c, rotation, lanes, options.seconds, [&] { return say(what); });
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    BenchResult r = timed_result(lanes[i].variant(), lanes[i].plan(), timings[i], result, entry.problem);
    r.plan_seconds = plan_seconds(entry.problem, lanes[i].variant());
    result.results.push_back(std::move(r));
  }
  if (!options.verify || lanes.empty() || !say("fp64 reference")) return result;
  const Result<Expected> expected = Expected::make(c, entry.problem, entry.seed);
  if (!expected.ok()) return expected.status();
  const std::size_t first = result.results.size() - lanes.size();
  for (std::size_t i = 0; i < lanes.size(); ++i)
    judge(result.results[first + i], expected.value(), lanes[i].output(), lanes[i].lse());
  return result;
}

namespace {

/// Fills in what depends on the ceilings.
void finish(BenchCaseResult& result, const Problem& problem, const std::vector<Ceilings>& ceilings) {
  for (BenchResult& r : result.results) {
    const auto of_threads =
        std::find_if(ceilings.begin(), ceilings.end(), [&](const Ceilings& c) { return c.threads == r.variant.threads; });
    if (of_threads == ceilings.end() || r.seconds.median <= 0) continue;
    const Ceilings::Read& read = rung_of(*of_threads, result.working_set_bytes);
    const ComputeCeiling compute = compute_ceiling(problem, *of_threads);
    r.floor = floor_of(problem, std::max(read.stream_gbs, read.gather_gbs), compute.gflops);
    r.floor.compute = compute.name;
    r.of_floor = r.floor.seconds / r.seconds.median;
    r.of_gather = read.gather_gbs > 0 ? r.gbs / read.gather_gbs : 0;
  }
}

/// Sets what follows from results and options: ok, commit, date, seconds of a result, and whether the machine was busy.
void conclude(BenchReport& report, const BenchOptions& options) {
  const auto any = [](const BenchCaseResult& c, auto&& is) { return std::any_of(c.results.begin(), c.results.end(), is); };
  const auto wrong = [&](const BenchCaseResult& c) {
    return any(c, [](const BenchResult& r) { return r.status == BenchStatus::wrong; });
  };
  const auto timed = [&](const BenchCaseResult& c) {
    return any(c, [](const BenchResult& r) { return r.status != BenchStatus::refused; });
  };
  report.ok = std::none_of(report.cases.begin(), report.cases.end(), wrong) &&
              std::any_of(report.cases.begin(), report.cases.end(), timed);
  report.commit = options.commit;
  report.date = utc_now("%Y-%m-%dT%H:%M:%SZ");
  report.seconds_per_result = options.seconds;
  report.busy = busy_text(report.ceilings, report.cases);
}

}  // namespace

Result<BenchReport> run_all(BenchReport report, const std::vector<Entry>& entries, const BenchOptions& options,
                            const Measured& measured) {
  bool stopped = false;
  const auto say = [&](const std::string& what) {
    stopped = stopped || (options.progress && !options.progress(what));
    return !stopped;
  };
  (void)say(formatted("measuring {} ceilings", measured.whose));
  const Result<std::vector<Ceilings>> at_start = measured.ceilings();
  if (!at_start.ok()) return at_start.status();
  for (std::size_t i = 0; i < entries.size() && !stopped; ++i) {
    const auto say_of_case = [&](const std::string& what) {
      return say(formatted("case {} of {}: {}", i + 1, entries.size(), what));
    };
    Result<BenchCaseResult> result = measured.run_case(entries[i], say_of_case);
    if (!result.ok()) return result.status();
    if (!stopped) report.cases.push_back(std::move(result).value());
  }
  (void)say(formatted("measuring {} ceilings again", measured.whose));
  const Result<std::vector<Ceilings>> at_end = measured.ceilings();
  if (!at_end.ok()) return at_end.status();
  for (std::size_t i = 0; i < at_start->size(); ++i) report.ceilings.push_back(better_of(at_start.value()[i], at_end.value()[i]));
  for (std::size_t i = 0; i < report.cases.size(); ++i) finish(report.cases[i], entries[i].problem, report.ceilings);
  conclude(report, options);
  return report;
}

namespace {

// Limits on what a calm machine shows (2 cores of a shared Xeon, 2026-11: calm runs have 0 to 5 % of calls disturbed, 1 to 8 %
// drift and hops of 54 ns; busy ones 60 %, 57 % and 6178 ns). Too strict a limit calls a usable run busy; too loose a one lets
// SLOW be said of noise.
constexpr double kMostDisturbed = 0.25;  // share of a result's calls that may be disturbed
constexpr double kMostDrift = 0.25;      // relative change of a ceiling, from start to end
constexpr double kMostHop = 2000;        // ns for a cache line from core to core; between two sockets: about 300
constexpr double kMostOfFloor = 1.05;    // more means that other processes used the machine when ceilings were measured

}  // namespace

std::string busy_text(const Disturbance& d) {
  std::vector<std::string> signs;
  if (static_cast<double>(d.disturbed) > kMostDisturbed * static_cast<double>(d.calls))
    signs.push_back(formatted("{} of {} calls were interrupted", d.disturbed, d.calls));
  if (d.drift > kMostDrift) signs.push_back(formatted("its ceilings moved by {:.0f} %", 100 * d.drift));
  if (d.hop_ns > kMostHop) signs.push_back(formatted("a cache line took {:.0f} ns from core to core", d.hop_ns));
  if (d.of_floor > kMostOfFloor) signs.push_back(formatted("a result is at {:.0f} % of the ceilings", 100 * d.of_floor));
  if (signs.empty()) return {};
  return formatted("this machine was busy: {}; do not compare these times", fmt::join(signs, ", "));
}

std::string busy_text(const std::vector<Ceilings>& ceilings, const std::vector<BenchCaseResult>& cases) {
  Disturbance most;
  for (const Ceilings& c : ceilings) {
    most.drift = std::max(most.drift, c.drift);
    most.hop_ns = std::max(most.hop_ns, c.ping_pong_ns);
  }
  for (const BenchCaseResult& c : cases)
    for (const BenchResult& r : c.results) {
      most.of_floor = std::max(most.of_floor, r.of_floor);
      if (r.disturbed * most.calls < most.disturbed * r.calls || r.calls == 0) continue;
      most.calls = r.calls;
      most.disturbed = r.disturbed;
    }
  return busy_text(most);
}

}  // namespace quire::bench_detail
