// SPDX-License-Identifier: Apache-2.0
// A verdict for a terminal: what was asked, what failed, what was refused, the suite's power, and what a pass says nothing about.
#include <algorithm>
#include <map>
#include <set>

#include "quire/tools/report.hpp"
#include "report/summary.h"
#include "text/formatted.h"

namespace quire {
namespace {

constexpr std::size_t kFailuresShown = 20;
constexpr std::size_t kReasonsShown = 12;

/// Result of one hazard or matrix, in one line.
std::string summary_line(const std::string& name, const report::MatrixSummary& s) {
  std::string text = formatted("  {:<22}{:>6} case{} {:>6} pass {:>5} fail {:>5} refused", name, s.cases,
                               s.cases == 1 ? " " : "s", s.passed, s.failed, s.refused);
  if (s.worst_ratio > 0) text += formatted("   worst error {:.3g} of tolerance", s.worst_ratio);
  if (s.num_compared < s.num_elements)
    text += formatted("   {:.0f} % of elements compared, all written and finite",
                      100.0 * static_cast<double>(s.num_compared) / static_cast<double>(s.num_elements));
  return text + "\n";
}

std::string cases_text(const Verdict& v) {
  std::string text;
  for (const report::MatrixSummary& matrix : report::summaries(v)) {
    text += summary_line(matrix.name, matrix);
    std::vector<std::string> order;
    std::map<std::string, report::MatrixSummary> by_name;
    for (const CaseResult& c : v.cases) {
      if (c.matrix != matrix.name) continue;
      if (by_name.find(c.name) == by_name.end()) order.push_back(c.name);
      by_name[c.name].add(c);
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
    if (c.status != CaseStatus::fail || ++failed > kFailuresShown) continue;
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
    if (c.status == CaseStatus::refused) ++reasons[c.reason];
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
  const std::int64_t killed = report::killed(v.power), total = report::could_be_killed(v.power);
  const std::int64_t hidden = std::ranges::count(v.power, false, &MutantResult::can_show);
  const std::int64_t unasked = static_cast<std::int64_t>(v.power.size()) - total - hidden;
  std::string text = formatted("power: {} of {} planted bugs were caught", killed, total);
  if (unasked > 0) text += formatted("; {} do{} not apply", unasked, unasked == 1 ? "es" : "");
  if (hidden > 0) text += formatted("; {} cannot show on these cases", hidden);
  text += "\n";
  for (const MutantResult& m : v.power)
    if (m.survived()) text += formatted("  missed: {} (a kernel that {})\n", m.id, m.text);
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

/// Lines of "  rows of a request 1 to 4200; ...", and which values of types, layouts and options were not tested.
std::string reach_text(const Reach& reach) {
  constexpr const char* kOrder[] = {"requests",       "rows of the batch", "rows of a request", "context of a request",
                                    "head_dim",       "page_size",         "KV heads",          "query heads per KV head",
                                    "sliding_window", "logits_soft_cap",   "softmax_scale"};
  std::string text, line;
  const auto flush = [&] {
    if (!line.empty()) text += "  " + line + "\n";
    line.clear();
  };
  const auto put = [&](const std::string& word) {
    if (line.size() + word.size() > 110) flush();
    line += (line.empty() ? "" : "; ") + word;
  };
  for (const char* name : kOrder)
    if (const auto at = reach.ranges.find(name); at != reach.ranges.end())
      put(at->second.first == at->second.second ? formatted("{} {:.10g}", name, at->second.first)
                                                : formatted("{} {:.10g} to {:.10g}", name, at->second.first, at->second.second));
  flush();
  const std::vector<std::string>& missing = reach.never;
  if (missing.empty()) return text;
  put("not tested: " + missing.front());
  for (std::size_t i = 1; i < missing.size(); ++i) put(missing[i]);
  flush();
  return text;
}

/// Lists inputs that no case had, so that a pass says nothing about them.
std::string unseen_text(const Verdict& v) {
  if (v.reach.ranges.empty()) return {};
  std::string text = "\nonly this was tested:\n" + reach_text(v.reach);
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
      v.cases, [](const CaseResult& c) { return c.status != CaseStatus::refused && c.num_compared < c.num_elements; });
  if (sampled > 0)
    text += formatted("  {} large cases were compared on a sample of rows; their other rows were written and finite\n", sampled);
  return text;
}

/// "on 2 of 226 cases, 224 refused": what a pass is a pass of.
std::string served_share_text(const Verdict& v) {
  const std::int64_t total = static_cast<std::int64_t>(v.cases.size()), refused = report::count(v, CaseStatus::refused);
  const std::int64_t failed = report::count(v, CaseStatus::fail);
  if (refused == 0 && failed == 0) return {};
  const std::string share =
      formatted(" {} {} of {} cases", failed != 0 ? "in" : "on", failed != 0 ? failed : total - refused, total);
  return refused == 0 ? share : formatted("{}, {} refused", share, refused);
}

/// "windows (11), sinks (10)": families of the planted bugs that were missed.
std::string missed_families(const Verdict& v) {
  std::map<std::string, std::int64_t> families;
  for (const MutantResult& m : v.power)
    if (m.survived()) ++families[m.family];
  std::string text;
  for (const auto& [family, bugs] : families) text += formatted("{}{} ({})", text.empty() ? "" : ", ", family, bugs);
  return text;
}

std::string conclusion(const Verdict& v) {
  if (v.verdict == VerifyVerdict::stopped) return "STOPPED: not every case was run";
  if (v.verdict != VerifyVerdict::mistrusted) return (v.verdict == VerifyVerdict::pass ? "PASS" : "FAIL") + served_share_text(v);
  if (std::ranges::none_of(v.power, &MutantResult::survived)) return "MISTRUSTED: no case was served" + served_share_text(v);
  return formatted("MISTRUSTED: passed, but the cases do not exercise: {}{}", missed_families(v), served_share_text(v));
}

}  // namespace

std::string to_string(const Verdict& v) {
  const bool fails = v.verdict == VerifyVerdict::fail;
  const std::string failing = formatted("smallest failing line: {}\n  {}\n", v.smallest_line, v.smallest_finding);
  std::string text =
      fails ? formatted("FAIL {}\n{}{}\n", v.target, v.shared.empty() ? "" : v.shared + "\n", failing) : std::string();
  text += formatted("verify {} on {}\n", v.target, v.device);
  text += cases_text(v) + skipped_text(v) + failures_text(v) + refusals_text(v) + "\n" + power_text(v) + peer_text(v);
  text += unseen_text(v) + "\n";
  if (fails) text += failing + (v.shared.empty() ? "" : v.shared + "\n");
  return text + formatted("{} ({:.1f} s)\n", conclusion(v), v.seconds);
}

}  // namespace quire
