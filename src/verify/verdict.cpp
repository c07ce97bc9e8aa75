// SPDX-License-Identifier: Apache-2.0
// See verdict.h.
#include "verify/verdict.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "quire/plan.hpp"
#include "text/formatted.h"
#include "verify/power.h"
#include "verify/reach.h"

#ifndef QUIRE_VERSION
#define QUIRE_VERSION "unknown"
#endif

namespace quire::conformance {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kFailuresShown = 20;
constexpr std::size_t kReasonsShown = 12;

const char* name(CheckState state) { return state == CheckState::pass ? "pass" : state == CheckState::fail ? "fail" : "skipped"; }

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

/// Faults that were noticed, or all that could have been.
std::int64_t count(const std::vector<MutantResult>& power, bool killed_only) {
  return std::count_if(power.begin(), power.end(),
                       [&](const MutantResult& m) { return killed_only ? m.killed : m.asked && m.can_show; });
}

/// What the served cases asked.
Reach reach_of(const Verdict& v) {
  Reach reach;
  for (const CaseResult& c : v.cases)
    if (const Result<ProblemLine> line = parse_problem_line(c.line); c.status != "refused" && line.ok()) reach.add(line.value());
  return reach;
}

/// The failing line that is the least to look at.
struct SmallestFailing {
  std::string line, finding;
};
SmallestFailing smallest_of(const Verdict& v) {
  SmallestFailing best;
  std::int64_t least = -1;
  for (const CaseResult& c : v.cases) {
    if (c.status != "fail") continue;
    const auto failed = std::ranges::find(c.checks, CheckState::fail, &CheckResult::state);
    const std::string& text = c.reduced_line.empty() ? c.line : c.reduced_line;
    const Result<ProblemLine> line = parse_problem_line(text);
    const Problem* p = line.ok() ? &line->problem : nullptr;
    const std::int64_t size = p == nullptr ? 0 : (p->visible_pairs() + p->num_tokens()) * p->num_q_heads * p->head_dim;
    if (least >= 0 && size >= least) continue;
    least = size;
    const std::string own = failed == c.checks.end() ? c.reason : formatted("{}: {}", failed->check, failed->text);
    best = {text + (c.special.empty() ? "" : formatted(" ({})", c.special)), c.reduced_line.empty() ? own : c.reduced_finding};
  }
  return best;
}

std::int64_t count(const Verdict& v, const char* status) {
  return std::count_if(v.cases.begin(), v.cases.end(), [&](const CaseResult& c) { return c.status == status; });
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return formatted("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

std::string device_text() {
  const Device d = host_device();
  return formatted("{}, {} thread{}", d.name, d.num_threads, d.num_threads == 1 ? "" : "s");
}

std::string upper(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

Json checks_json(const CaseResult& c) {
  Json list = Json::array();
  for (const CheckResult& check : c.checks)
    list.push_back(
        {{"check", check.check}, {"state", name(check.state)}, {"worst_ratio", number(check.worst_ratio)}, {"text", check.text}});
  return list;
}

Json case_json(const CaseResult& c) {
  Json json = {{"matrix", c.matrix},
               {"name", c.name},
               {"line", c.line},
               {"special", c.special},
               {"status", c.status},
               {"kernel", c.kernel},
               {"reason", c.reason},
               {"seconds", number(c.seconds)},
               {"num_elements", c.num_elements},
               {"num_compared", c.num_compared},
               {"checks", checks_json(c)},
               {"reduced_line", c.reduced_line},
               {"reduced_finding", c.reduced_finding}};
  json["pictures"] = c.pictures.empty() ? Json(nullptr) : Json::parse(c.pictures, nullptr, /*allow_exceptions=*/false);
  return json;
}

Json power_json(const Verdict& v) {
  if (v.power.empty()) return nullptr;
  Json mutants = Json::array();
  for (const MutantResult& m : v.power)
    mutants.push_back({{"id", m.id},
                       {"family", m.family},
                       {"text", m.text},
                       {"killed", m.killed},
                       {"asked", m.asked},
                       {"can_show", m.can_show},
                       {"check", m.check},
                       {"name", m.name},
                       {"line", m.line},
                       {"finding", m.finding}});
  return {{"killed", count(v.power, /*killed_only=*/true)},
          {"total", count(v.power, /*killed_only=*/false)},
          {"mutants", std::move(mutants)}};
}

Json peer_json(const Verdict& v) {
  Json list = Json::array();
  for (const PeerPower& p : v.peer) {
    Json mutants = Json::array();
    for (const PeerPower::Mutant& m : p.mutants)
      mutants.push_back({{"id", m.id}, {"killed", m.killed}, {"max_error", number(m.max_error)}});
    list.push_back({{"name", p.name},
                    {"line", p.line},
                    {"atol", p.atol},
                    {"killed", p.killed},
                    {"total", p.total},
                    {"known_killed", p.known_killed},
                    {"known_total", p.known_total},
                    {"rows_compared", p.rows_compared},
                    {"rows_total", p.rows_total},
                    {"mutants", std::move(mutants)}});
  }
  return list;
}

Json reach_json(const Verdict& v) {
  const Reach reach = reach_of(v);
  Json ranges = Json::array(), left_out = Json::array();
  for (const auto& [name, range] : reach.ranges())
    ranges.push_back({{"name", name}, {"least", range.first}, {"most", range.second}});
  for (const auto& [name, cases] : v.left_out) left_out.push_back({{"name", name}, {"cases", cases}});
  return {{"ranges", std::move(ranges)}, {"never", reach.never()}, {"supported", v.supported}, {"left_out", std::move(left_out)}};
}

double worst_ratio(const CaseResult& c) {
  double worst = 0;
  for (const CheckResult& check : c.checks) worst = std::max(worst, check.worst_ratio);
  return worst;
}

/// What one hazard or matrix came to, in one line.
std::string summary_line(const std::string& name, const MatrixSummary& s) {
  std::string text = formatted("  {:<22}{:>6} case{} {:>6} pass {:>5} fail {:>5} refused", name, s.cases,
                               s.cases == 1 ? " " : "s", s.passed, s.failed, s.refused);
  if (s.worst_ratio > 0) text += formatted("   worst error {:.3g} of tolerance", s.worst_ratio);
  if (s.num_compared < s.num_elements)
    text += formatted("   {:.0f} % of elements compared, all written and finite",
                      100.0 * static_cast<double>(s.num_compared) / static_cast<double>(s.num_elements));
  return text + "\n";
}

void add(MatrixSummary& s, const CaseResult& c) {
  ++s.cases;
  ++(c.status == "pass" ? s.passed : c.status == "fail" ? s.failed : s.refused);
  s.seconds += c.seconds;
  s.worst_ratio = std::max(s.worst_ratio, worst_ratio(c));
  if (c.status == "refused") return;
  s.num_elements += c.num_elements;
  s.num_compared += c.num_compared;
}

std::string cases_text(const Verdict& v) {
  std::string text;
  for (const MatrixSummary& matrix : summaries(v)) {
    text += summary_line(matrix.name, matrix);
    std::vector<std::string> order;
    std::map<std::string, MatrixSummary> by_name;
    for (const CaseResult& c : v.cases) {
      if (c.matrix != matrix.name) continue;
      if (by_name.find(c.name) == by_name.end()) order.push_back(c.name);
      add(by_name[c.name], c);
    }
    if (order.size() < 2) continue;
    for (const std::string& name : order) text += summary_line("  " + name, by_name[name]);
  }
  std::map<std::string, std::int64_t> kernels;
  for (const CaseResult& c : v.cases)
    if (!c.kernel.empty()) ++kernels[c.kernel];
  for (const auto& [kernel, cases] : kernels) text += formatted("  served by {}: {} cases\n", kernel, cases);
  return text;
}

std::string failures_text(const Verdict& v) {
  std::string text;
  std::size_t shown = 0, failed = 0;
  for (const CaseResult& c : v.cases) {
    if (c.status != "fail" || ++failed > kFailuresShown) continue;
    ++shown;
    text += formatted("\nFAIL {} {}: {}\n", c.matrix, c.name, c.line);
    if (!c.special.empty()) text += formatted("  data: {}\n", c.special);
    if (!c.reason.empty()) text += formatted("  {}\n", c.reason);
    for (const CheckResult& check : c.checks)
      if (check.state == CheckState::fail) text += formatted("  {}: {}\n", check.check, check.text);
    if (!c.reduced_line.empty()) text += formatted("  smallest: {}\n    {}\n", c.reduced_line, c.reduced_finding);
  }
  if (failed > shown) text += formatted("\n... and {} more failing cases (--json lists all)\n", failed - shown);
  return text;
}

std::string refusals_text(const Verdict& v) {
  std::map<std::string, std::int64_t> reasons;
  for (const CaseResult& c : v.cases)
    if (c.status == "refused") ++reasons[c.reason];
  if (reasons.empty()) return {};
  std::vector<std::pair<std::int64_t, std::string>> sorted;
  for (const auto& [reason, cases] : reasons) sorted.emplace_back(cases, reason);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = "\nrefused, not failed:\n";
  for (std::size_t i = 0; i < std::min(kReasonsShown, sorted.size()); ++i)
    text += formatted("  {:>5} x {}\n", sorted[i].first, sorted[i].second);
  if (sorted.size() > kReasonsShown) text += formatted("  ... and {} more reasons\n", sorted.size() - kReasonsShown);
  return text;
}

/// Checks that no case was asked, with the reason.
std::string skipped_text(const Verdict& v) {
  std::map<std::string, std::string> reason;
  std::set<std::string> made;
  for (const CaseResult& c : v.cases)
    for (const CheckResult& check : c.checks) {
      if (check.state == CheckState::skipped) reason.emplace(check.check, check.text);
      if (check.state != CheckState::skipped) made.insert(check.check);
    }
  std::string text;
  for (const auto& [check, why] : reason)
    if (!made.contains(check)) text += formatted("  not checked: {} ({})\n", check, why);
  return text;
}

std::string power_text(const Verdict& v) {
  if (v.power.empty()) return "power: not measured\n";
  const std::int64_t killed = count(v.power, /*killed_only=*/true), total = count(v.power, /*killed_only=*/false);
  const std::int64_t hidden = std::ranges::count(v.power, false, &MutantResult::can_show);
  const std::int64_t unasked = static_cast<std::int64_t>(v.power.size()) - total - hidden;
  std::string text = formatted("power: {} of {} planted bugs were caught", killed, total);
  if (unasked > 0) text += formatted("; {} do{} not apply", unasked, unasked == 1 ? "es" : "");
  if (hidden > 0) text += formatted("; {} cannot show on these cases", hidden);
  text += "\n";
  for (const MutantResult& m : v.power)
    if (survived(m)) text += formatted("  missed: {} (a kernel that {})\n", m.id, m.text);
  for (const MutantResult& m : v.power)
    if (!m.asked) text += formatted("  does not apply: {} (a kernel that {})\n", m.id, m.text);
  return text;
}

std::string peer_text(const Verdict& v) {
  if (v.peer.empty()) return {};
  std::string text = "\nthe same planted bugs with the data and tolerance of vLLM's test_prefix_prefill.py:\n";
  for (const PeerPower& p : v.peer) {
    text += formatted("  {:<28} atol {:<7g} catches {:>2} of {:>2} known bugs, {:>3} of {:>3} of the catalogue\n", p.name, p.atol,
                      p.known_killed, p.known_total, p.killed, p.total);
    text += formatted("    {} of {} rows compared: {}\n", p.rows_compared, p.rows_total, p.line);
  }
  return text;
}

/// What a pass says nothing about.
std::string unseen_text(const Verdict& v) {
  const Reach reach = reach_of(v);
  if (reach.empty()) return {};
  std::string text = "\nonly this was tested:\n" + reach.text();
  if (!v.supported.empty()) text += formatted("  in supported forms only: {}\n", v.supported);
  std::string left_out;
  for (const auto& [name, cases] : v.left_out) left_out += formatted("{}{} ({})", left_out.empty() ? "" : ", ", name, cases);
  if (!left_out.empty()) text += formatted("  left out, because no supported form exists: {}\n", left_out);
  std::map<std::string, std::int64_t> families;
  for (const MutantResult& m : v.power)
    if (!m.can_show) ++families[m.family];
  std::string hidden;
  for (const auto& [family, faults] : families) hidden += formatted("{}{} ({})", hidden.empty() ? "" : ", ", family, faults);
  if (!hidden.empty()) text += formatted("  planted bugs that these cases cannot show, by family: {}\n", hidden);
  const std::int64_t sampled = std::ranges::count_if(
      v.cases, [](const CaseResult& c) { return c.status != "refused" && c.num_compared < c.num_elements; });
  if (sampled > 0)
    text += formatted("  {} large cases were compared on a sample of rows; their other rows were written and finite\n", sampled);
  return text;
}

/// "on 2 of 226 cases, 224 refused": what a pass is a pass of.
std::string share_text(const Verdict& v) {
  const std::int64_t total = static_cast<std::int64_t>(v.cases.size()), refused = count(v, "refused");
  const std::int64_t failed = count(v, "fail");
  if (refused == 0 && failed == 0) return {};
  const std::string share =
      formatted(" {} {} of {} cases", failed != 0 ? "in" : "on", failed != 0 ? failed : total - refused, total);
  return refused == 0 ? share : formatted("{}, {} refused", share, refused);
}

/// "windows (11), sinks (10)": families of the planted bugs that were missed.
std::string missed_families(const Verdict& v) {
  std::map<std::string, std::int64_t> families;
  for (const MutantResult& m : v.power)
    if (survived(m)) ++families[m.family];
  std::string text;
  for (const auto& [family, bugs] : families) text += formatted("{}{} ({})", text.empty() ? "" : ", ", family, bugs);
  return text;
}

std::string conclusion(const Verdict& v) {
  if (v.verdict == "stopped") return "STOPPED: not every case was run";
  if (v.verdict != "mistrusted") return upper(v.verdict) + share_text(v);
  if (std::none_of(v.power.begin(), v.power.end(), survived)) return "MISTRUSTED: no case was served" + share_text(v);
  return formatted("MISTRUSTED: passed, but the cases do not exercise: {}{}", missed_families(v), share_text(v));
}

}  // namespace

std::vector<MatrixSummary> summaries(const Verdict& v) {
  std::vector<MatrixSummary> list;
  for (const CaseResult& c : v.cases) {
    auto at = std::find_if(list.begin(), list.end(), [&](const MatrixSummary& s) { return s.name == c.matrix; });
    if (at == list.end()) {
      list.emplace_back();
      at = list.end() - 1;
      at->name = c.matrix;
    }
    add(*at, c);
  }
  return list;
}

std::string text_of(const Verdict& v) {
  const SmallestFailing smallest = smallest_of(v);
  const std::string failing = formatted("smallest failing line: {}\n  {}\n", smallest.line, smallest.finding);
  std::string text = v.verdict == "fail" ? formatted("FAIL {}\n{}\n", v.target, failing) : std::string();
  text += formatted("verify {} on {}\n", v.target, device_text());
  text += cases_text(v) + skipped_text(v) + failures_text(v) + refusals_text(v) + "\n" + power_text(v) + peer_text(v);
  text += unseen_text(v) + "\n";
  if (v.verdict == "fail") text += failing;
  return text + formatted("{} ({:.1f} s)\n", conclusion(v), v.seconds);
}

std::string json_of(const Verdict& v) {
  Json matrices = Json::array(), cases = Json::array();
  for (const MatrixSummary& s : summaries(v))
    matrices.push_back({{"name", s.name},
                        {"cases", s.cases},
                        {"passed", s.passed},
                        {"failed", s.failed},
                        {"refused", s.refused},
                        {"seconds", number(s.seconds)},
                        {"worst_ratio", number(s.worst_ratio)},
                        {"num_elements", s.num_elements},
                        {"num_compared", s.num_compared}});
  for (const CaseResult& c : v.cases) cases.push_back(case_json(c));
  const SmallestFailing smallest = smallest_of(v);
  const Json json = {{"quire_verify", 1},
                     {"version", QUIRE_VERSION},
                     {"date", today()},
                     {"device", device_text()},
                     {"target", v.target},
                     {"verdict", v.verdict},
                     {"num_cases", v.cases.size()},
                     {"num_served", static_cast<std::int64_t>(v.cases.size()) - count(v, "refused")},
                     {"num_refused", count(v, "refused")},
                     {"seconds", number(v.seconds)},
                     {"smallest_line", smallest.line},
                     {"smallest_finding", smallest.finding},
                     {"reach", reach_json(v)},
                     {"matrices", std::move(matrices)},
                     {"power", power_json(v)},
                     {"peer", peer_json(v)},
                     {"cases", std::move(cases)}};
  // Text may come from a foreign target: bytes that are not UTF-8 are replaced, never thrown at.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace quire::conformance
