// SPDX-License-Identifier: Apache-2.0
// Two reports, result by result. Noise must not be called FAST: the intervals hold what changed between blocks, and the machine's
// own ceilings say what changed during a run and between runs.
#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <tuple>

#include <nlohmann/json.hpp>

#include "bench/busy.h"
#include "bench/report.h"
#include "quire/bench.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

using nlohmann::json;

constexpr double kSmallest = 0.02;  // medians closer than this are the same
constexpr double kTight = 0.05;     // SAME is said only if the intervals exclude a change larger than this
constexpr double kMoved = 0.5;      // a ceiling that moved by this share of the change, and the same way, explains it

struct Timed {
  double median = 0, low = 0, high = 0;
  double floor_seconds = 0;  ///< moves with the ceilings alone, for the same problem
  std::string kernel;
  bool wrong = false;
  double drift = 0;  ///< how far the machine's ceilings moved during the run
  std::string busy;  ///< why this time is not to be compared; empty if it may be
};
using Key = std::tuple<std::string, std::string, int, bool>;  // line, kernel asked for, threads, batch-invariant

struct Parsed {
  std::string machine;
  std::map<Key, Timed> timed;
  std::vector<std::pair<Key, std::string>> order;  ///< with the case's name
};

std::string machine_text(const json& m) {
  return formatted("{}, {} cores, {}, L1 {}, L2 {}, L3 {} bytes", m.at("cpu").get<std::string>(), m.at("cores").get<int>(),
                   m.at("features").get<std::string>(), m.at("l1_bytes").get<std::int64_t>(),
                   m.at("l2_bytes").get<std::int64_t>(), m.at("l3_bytes").get<std::int64_t>());
}

/// Of the ceilings with so many threads: {drift, nanoseconds from core to core}.
std::pair<double, double> unrest_of(const json& report, int threads) {
  for (const json& c : report.at("ceilings"))
    if (c.at("threads").get<int>() == threads) return {c.at("drift").get<double>(), c.value("ping_pong_ns", 0.0)};
  return {0, 0};
}

/// Throws what nlohmann::json throws.
Parsed parse(std::string_view text) {
  const json report = json::parse(text);
  if (!report.is_object() || report.value("schema", "") != "quire.bench/1")
    throw json::other_error::create(501, "not a report of `quire bench --json` (\"schema\": \"quire.bench/1\")", nullptr);
  Parsed parsed;
  parsed.machine = machine_text(report.at("machine"));
  for (const json& c : report.at("cases"))
    for (const json& r : c.at("results")) {
      const json& s = r.at("seconds");
      const Key key{c.at("line").get<std::string>(), r.at("asked_kernel").get<std::string>(), r.at("threads").get<int>(),
                    r.at("batch_invariant").get<bool>()};
      const auto [drift, hop_ns] = unrest_of(report, std::get<2>(key));
      const benchmark::Disturbance unrest{r.value("calls", std::int64_t{0}), r.value("disturbed", std::int64_t{0}), drift, hop_ns,
                                          r.value("of_floor", 0.0)};
      const Timed t{s.at("median").get<double>(),
                    s.at("low").get<double>(),
                    s.at("high").get<double>(),
                    r.at("floor").at("seconds").get<double>(),
                    r.at("kernel").get<std::string>(),
                    r.at("status") == "wrong",
                    drift,
                    benchmark::busy_text(unrest)};
      if (t.median <= 0 || t.low <= 0 || r.at("status") == "refused") continue;
      if (parsed.timed.emplace(key, t).second) parsed.order.emplace_back(key, c.at("name").get<std::string>());
    }
  return parsed;
}

void judge(BenchChange& change, const Timed& before, const Timed& after) {
  change.ratio = after.median / before.median;
  change.low = after.low / before.high;
  change.high = after.high / before.low;
  const bool apart = change.low > 1 || change.high < 1;
  if (before.wrong || after.wrong) {
    change.verdict = "AMBIGUOUS";
    change.reason = formatted("the {} output is wrong: its time means nothing", after.wrong ? "new" : "old");
    return;
  }
  const bool small = std::abs(change.ratio - 1) < kSmallest;
  if (small) {
    const bool tight = std::max(change.high - 1, 1 - change.low) <= kTight;
    change.verdict = tight ? "SAME" : "AMBIGUOUS";
    if (!tight) change.reason = "the medians agree, but the intervals are wide";
    return;
  }
  if (!apart) {
    change.verdict = "AMBIGUOUS";
    change.reason = "the intervals overlap";
    return;
  }
  if (!before.busy.empty() || !after.busy.empty()) {
    change.verdict = "AMBIGUOUS";
    change.reason =
        formatted("the {} run: {}", after.busy.empty() ? "old" : "new", after.busy.empty() ? before.busy : after.busy);
    return;
  }
  const double drift = std::max(before.drift, after.drift);
  if (std::abs(change.ratio - 1) <= drift) {
    change.verdict = "AMBIGUOUS";
    change.reason = formatted("the machine itself drifted by {:.0f} % during a run", 100 * drift);
    return;
  }
  // The same problem on the same machine has the same floor unless a ceiling moved.
  const double machine = before.floor_seconds > 0 && after.floor_seconds > 0 ? after.floor_seconds / before.floor_seconds : 1;
  if ((machine - 1) * (change.ratio - 1) > 0 && std::abs(machine - 1) >= kMoved * std::abs(change.ratio - 1)) {
    change.verdict = "AMBIGUOUS";
    change.reason = formatted("the machine's own floor moved by {:+.1f} %", 100 * (machine - 1));
    return;
  }
  change.verdict = change.ratio < 1 ? "FAST" : "SLOW";
  if (before.kernel != after.kernel) change.reason = formatted("{} -> {}", before.kernel, after.kernel);
}

std::string text_of(const BenchComparison& comparison) {
  std::string text;
  std::map<std::string, int> counts;
  for (const BenchChange& c : comparison.changes) {
    ++counts[c.verdict];
    text += formatted("{:<9} {:>6.1f} % [{:+.1f}, {:+.1f}]  {}  {}{}{}\n", c.verdict, 100 * (c.ratio - 1), 100 * (c.low - 1),
                      100 * (c.high - 1), benchmark::variant_text(c.variant, c.variant.kernel),
                      c.name.empty() ? std::string() : c.name + "  ", benchmark::shortened(c.line),
                      c.reason.empty() ? "" : "  (" + c.reason + ")");
  }
  text += formatted("time {} FAST, {} SLOW, {} SAME, {} AMBIGUOUS", counts["FAST"], counts["SLOW"], counts["SAME"],
                    counts["AMBIGUOUS"]);
  if (comparison.only_old + comparison.only_new > 0)
    text += formatted("; {} only in the old report, {} only in the new one", comparison.only_old, comparison.only_new);
  return text + "\n";
}

std::string json_of(const BenchComparison& comparison) {
  nlohmann::ordered_json changes = nlohmann::ordered_json::array();
  for (const BenchChange& c : comparison.changes)
    changes.push_back({{"name", c.name},
                       {"line", c.line},
                       {"asked_kernel", c.variant.kernel},
                       {"threads", c.variant.threads},
                       {"batch_invariant", c.variant.batch_invariant},
                       {"ratio", c.ratio},
                       {"low", c.low},
                       {"high", c.high},
                       {"verdict", c.verdict},
                       {"reason", c.reason}});
  const nlohmann::ordered_json all = {{"schema", "quire.bench_compare/1"},
                                      {"changes", std::move(changes)},
                                      {"only_old", comparison.only_old},
                                      {"only_new", comparison.only_new}};
  return all.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<BenchComparison> compare_parsed(const Parsed& before, const Parsed& after, bool force) {
  if (before.machine != after.machine && !force)
    return Status(Code::invalid_argument,
                  formatted("bench: two different machines:\n  old: {}\n  new: {}", before.machine, after.machine));
  BenchComparison comparison;
  for (const auto& [key, name] : after.order) {
    const auto found = before.timed.find(key);
    if (found == before.timed.end()) {
      ++comparison.only_new;
      continue;
    }
    BenchChange change;
    change.name = name;
    std::tie(change.line, change.variant.kernel, change.variant.threads, change.variant.batch_invariant) = key;
    judge(change, found->second, after.timed.at(key));
    comparison.changes.push_back(std::move(change));
  }
  if (comparison.changes.empty())
    return Status(Code::parse_error,
                  formatted("bench: nothing to compare: of {} results in the old report and {} in the new one, none is of "
                            "the same problem line, kernel and threads",
                            before.timed.size(), after.timed.size()));
  comparison.only_old = static_cast<std::int64_t>(before.timed.size() - comparison.changes.size());
  comparison.text = text_of(comparison);
  comparison.json = json_of(comparison);
  return comparison;
}

Result<Parsed> parse_report(std::string_view text, const char* which) {
  try {
    return parse(text);
  } catch (const json::exception& error) {
    const std::string_view what = error.what();
    const std::size_t id = what.find("] ");
    return Status(Code::parse_error,
                  formatted("bench: the {} report: {:.300}", which, what.substr(id == std::string_view::npos ? 0 : id + 2)));
  }
}

}  // namespace

Result<BenchComparison> compare_bench(std::string_view old_json, std::string_view new_json, bool force) {
  try {
    const Result<Parsed> before = parse_report(old_json, "old");
    if (!before.ok()) return before.status();
    const Result<Parsed> after = parse_report(new_json, "new");
    if (!after.ok()) return after.status();
    return compare_parsed(before.value(), after.value(), force);
  } catch (const std::bad_alloc&) {
    return Status(Code::out_of_memory, "bench: not enough memory");
  }
}

}  // namespace quire
