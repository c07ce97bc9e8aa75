// SPDX-License-Identifier: Apache-2.0
// Two reports, result by result. Noise must not be called FAST: the intervals hold what changed between blocks, and the machine's
// own ceilings say what changed during a run and between runs.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "batch/caught.h"
#include "bench/driver.h"
#include "quire/tools/report.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

constexpr double kSmallest = 0.02;  // medians closer than this are the same
constexpr double kTight = 0.05;     // SAME is said only if the intervals exclude a change larger than this
constexpr double kMoved = 0.5;      // a ceiling that moved by this share of the change, and the same way, explains it

struct Timed {
  Interval seconds;
  double floor_seconds = 0;  ///< moves with the ceilings alone, for the same problem
  std::string kernel;
  bool wrong = false;
  double drift = 0;  ///< relative change of the machine's ceilings during the run
  std::string busy;  ///< reason why this time is not to be compared, or empty
};
using Key = std::tuple<std::string, std::string, int, bool>;  // line, kernel asked for, threads, batch-invariant

/// The parts of one report that are compared.
struct Times {
  std::map<Key, Timed> timed;
  std::vector<std::pair<Key, std::string>> order;  ///< keys in the report's order, with the case's name
};

/// The compiler is left out: a new compiler may be what changed.
std::string machine_of(const BenchMachine& m) {
  return formatted("{}, {} cores, {}, L1 {}, L2 {}, L3 {} bytes", m.cpu, m.cores, m.features, m.l1_bytes, m.l2_bytes, m.l3_bytes);
}

Timed timed_of(const BenchReport& report, const BenchResult& r) {
  bench_detail::Disturbance unrest{r.calls, r.disturbed, 0, 0, r.of_floor};
  const auto ceilings = std::ranges::find(report.ceilings, r.variant.threads, &Ceilings::threads);
  if (ceilings != report.ceilings.end()) unrest.drift = ceilings->drift, unrest.hop_ns = ceilings->ping_pong_ns;
  return {r.seconds, r.floor.seconds, r.kernel, r.status == BenchStatus::wrong, unrest.drift, bench_detail::busy_text(unrest)};
}

Times times_of(const BenchReport& report) {
  Times times;
  for (const BenchCaseResult& c : report.cases)
    for (const BenchResult& r : c.results) {
      if (r.seconds.median <= 0 || r.seconds.low <= 0 || r.status == BenchStatus::refused) continue;
      const Key key{c.line, r.variant.kernel, r.variant.threads, r.variant.batch_invariant};
      if (times.timed.emplace(key, timed_of(report, r)).second) times.order.emplace_back(key, c.name);
    }
  return times;
}

void judge(BenchChange& change, const Timed& before, const Timed& after) {
  change.ratio = after.seconds.median / before.seconds.median;
  change.low = after.seconds.low / before.seconds.high;
  change.high = after.seconds.high / before.seconds.low;
  change.verdict = BenchChangeVerdict::ambiguous;
  const bool apart = change.low > 1 || change.high < 1;
  if (before.wrong || after.wrong) {
    change.reason = formatted("the {} output is wrong: its time means nothing", after.wrong ? "new" : "old");
    return;
  }
  const bool small = std::abs(change.ratio - 1) < kSmallest;
  if (small) {
    const bool tight = std::max(change.high - 1, 1 - change.low) <= kTight;
    if (tight) change.verdict = BenchChangeVerdict::same;
    if (!tight) change.reason = "the medians agree, but the intervals are wide";
    return;
  }
  if (!apart) {
    change.reason = "the intervals overlap";
    return;
  }
  if (!before.busy.empty() || !after.busy.empty()) {
    change.reason =
        formatted("the {} run: {}", after.busy.empty() ? "old" : "new", after.busy.empty() ? before.busy : after.busy);
    return;
  }
  const double drift = std::max(before.drift, after.drift);
  if (std::abs(change.ratio - 1) <= drift) {
    change.reason = formatted("the machine itself drifted by {:.0f} % during a run", 100 * drift);
    return;
  }
  // The floor of one problem on one machine is constant unless a ceiling moved.
  const double machine = before.floor_seconds > 0 && after.floor_seconds > 0 ? after.floor_seconds / before.floor_seconds : 1;
  if ((machine - 1) * (change.ratio - 1) > 0 && std::abs(machine - 1) >= kMoved * std::abs(change.ratio - 1)) {
    change.reason = formatted("the machine's own floor moved by {:+.1f} %", 100 * (machine - 1));
    return;
  }
  change.verdict = change.ratio < 1 ? BenchChangeVerdict::fast : BenchChangeVerdict::slow;
  if (before.kernel != after.kernel) change.reason = formatted("{} -> {}", before.kernel, after.kernel);
}

Result<BenchReport> parse_named(std::string_view json, const char* which) {
  Result<BenchReport> report = parse_bench_report(json);
  if (report.ok()) return report;
  return Status(report.status().code(), formatted("bench: the {} report: {}", which, report.status().message()));
}

}  // namespace

Result<BenchComparison> compare_bench(const BenchReport& before, const BenchReport& after, bool force) {
  const std::string old_machine = machine_of(before.machine), new_machine = machine_of(after.machine);
  if (old_machine != new_machine && !force)
    return Status(Code::invalid_argument,
                  formatted("bench: two different machines:\n  old: {}\n  new: {}", old_machine, new_machine));
  const Times old_times = times_of(before), new_times = times_of(after);
  BenchComparison comparison;
  for (const auto& [key, name] : new_times.order) {
    const auto found = old_times.timed.find(key);
    if (found == old_times.timed.end()) {
      ++comparison.only_new;
      continue;
    }
    BenchChange change;
    change.name = name;
    std::tie(change.line, change.variant.kernel, change.variant.threads, change.variant.batch_invariant) = key;
    judge(change, found->second, new_times.timed.at(key));
    comparison.changes.push_back(std::move(change));
  }
  if (comparison.changes.empty())
    return Status(Code::parse_error,
                  formatted("bench: nothing to compare: of {} results in the old report and {} in the new one, none is of "
                            "the same problem line, kernel and threads",
                            old_times.timed.size(), new_times.timed.size()));
  comparison.only_old = static_cast<std::int64_t>(old_times.timed.size() - comparison.changes.size());
  return comparison;
}

Result<BenchComparison> compare_bench(std::string_view old_json, std::string_view new_json, bool force) try {
  const Result<BenchReport> before = parse_named(old_json, "old");
  if (!before.ok()) return before.status();
  const Result<BenchReport> after = parse_named(new_json, "new");
  if (!after.ok()) return after.status();
  return compare_bench(before.value(), after.value(), force);
} catch (...) {
  return batch::caught("compare_bench");
}

}  // namespace quire
