// SPDX-License-Identifier: Apache-2.0
// A verdict as JSON (verify.md).
#include "quire/tools/report.hpp"
#include "report/json/keys.h"
#include "report/pictures.h"
#include "report/summary.h"

namespace quire::report {

template <typename Keys>
void keys_of(Keys& keys, const CheckResult& check) {
  keys("check", check.check, "state", check.state, "worst_ratio", check.worst_ratio, "text", check.text);
}

template <typename Keys>
void keys_of(Keys& keys, const CaseResult& c) {
  keys("matrix", c.matrix, "name", c.name, "line", c.line, "special", c.special, "status", c.status, "kernel", c.kernel);
  keys("reason", c.reason, "seconds", c.seconds, "num_elements", c.num_elements, "num_compared", c.num_compared);
  keys("checks", c.checks, "reduced_line", c.reduced_line, "reduced_finding", c.reduced_finding);
  keys.says("pictures", pictures_json(c.pictures.get()));
}

template <typename Keys>
void keys_of(Keys& keys, const MutantResult& m) {
  keys("id", m.id, "family", m.family, "text", m.text, "killed", m.killed, "asked", m.asked, "can_show", m.can_show);
  keys("check", m.check, "name", m.name, "line", m.line, "finding", m.finding);
}

template <typename Keys>
void keys_of(Keys& keys, const PeerPower::Mutant& m) {
  keys("id", m.id, "killed", m.killed, "max_error", m.max_error);
}

template <typename Keys>
void keys_of(Keys& keys, const PeerPower& p) {
  keys("name", p.name, "line", p.line, "atol", p.atol, "killed", p.killed, "total", p.total, "known_killed", p.known_killed);
  keys("known_total", p.known_total, "rows_compared", p.rows_compared, "rows_total", p.rows_total, "mutants", p.mutants);
}

template <typename Keys>
void keys_of(Keys& keys, const MatrixSummary& s) {
  keys("name", s.name, "cases", s.cases, "passed", s.passed, "failed", s.failed, "refused", s.refused, "seconds", s.seconds);
  keys("worst_ratio", s.worst_ratio, "num_elements", s.num_elements, "num_compared", s.num_compared);
}

namespace {

Json power_json(const Verdict& v) {
  if (v.power.empty()) return nullptr;
  return {{"killed", killed(v.power)}, {"total", could_be_killed(v.power)}, {"mutants", Writer::written(v.power)}};
}

Json reach_json(const Verdict& v) {
  Json ranges = Json::array(), left_out = Json::array();
  for (const auto& [name, range] : v.reach.ranges)
    ranges.push_back({{"name", name}, {"least", range.first}, {"most", range.second}});
  for (const auto& [name, cases] : v.left_out) left_out.push_back({{"name", name}, {"cases", cases}});
  return {{"ranges", std::move(ranges)}, {"never", v.reach.never}, {"supported", v.supported}, {"left_out", std::move(left_out)}};
}

}  // namespace

template <typename Keys>
void keys_of(Keys& keys, const Verdict& v) {
  const std::int64_t cases = std::ssize(v.cases), refused = count(v, CaseStatus::refused);
  keys.says("quire_verify", 1);
  keys.says("version", QUIRE_VERSION);
  keys("date", v.date, "device", v.device, "target", v.target, "verdict", v.verdict);
  keys("num_cases", cases, "num_served", cases - refused, "num_refused", refused, "seconds", v.seconds);
  keys("shared", v.shared);
  keys("smallest_line", v.smallest_line, "smallest_finding", v.smallest_finding, "reach", reach_json(v));
  keys("matrices", summaries(v), "power", power_json(v), "peer", v.peer, "cases", v.cases);
}

Json json_of(const Verdict& v) { return Writer::written(v); }

}  // namespace quire::report

namespace quire {

std::string to_json(const Verdict& verdict) { return report::printed(report::json_of(verdict)); }

}  // namespace quire
