// SPDX-License-Identifier: Apache-2.0
// A verdict as JSON (verify.md).
#include <utility>

#include "quire/report.hpp"
#include "report/json/json.h"
#include "report/pictures.h"
#include "report/summary.h"

namespace quire::report {
namespace {

Json checks_json(const CaseResult& c) {
  Json list = Json::array();
  for (const CheckResult& check : c.checks)
    list.push_back(
        {{"check", check.check}, {"state", name(check.state)}, {"worst_ratio", number(check.worst_ratio)}, {"text", check.text}});
  return list;
}

Json case_json(const CaseResult& c) {
  return {{"matrix", c.matrix},
          {"name", c.name},
          {"line", c.line},
          {"special", c.special},
          {"status", name(c.status)},
          {"kernel", c.kernel},
          {"reason", c.reason},
          {"seconds", number(c.seconds)},
          {"num_elements", c.num_elements},
          {"num_compared", c.num_compared},
          {"checks", checks_json(c)},
          {"reduced_line", c.reduced_line},
          {"reduced_finding", c.reduced_finding},
          {"pictures", pictures_json(c.pictures.get())}};
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
  return {{"killed", killed(v.power)}, {"total", could_be_killed(v.power)}, {"mutants", std::move(mutants)}};
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
  Json ranges = Json::array(), left_out = Json::array();
  for (const auto& [name, range] : v.reach.ranges)
    ranges.push_back({{"name", name}, {"least", range.first}, {"most", range.second}});
  for (const auto& [name, cases] : v.left_out) left_out.push_back({{"name", name}, {"cases", cases}});
  return {{"ranges", std::move(ranges)}, {"never", v.reach.never}, {"supported", v.supported}, {"left_out", std::move(left_out)}};
}

}  // namespace

Json json_of(const Verdict& v) {
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
  return {{"quire_verify", 1},
          {"version", QUIRE_VERSION},
          {"date", v.date},
          {"device", v.device},
          {"target", v.target},
          {"verdict", name(v.verdict)},
          {"num_cases", v.cases.size()},
          {"num_served", static_cast<std::int64_t>(v.cases.size()) - count(v, CaseStatus::refused)},
          {"num_refused", count(v, CaseStatus::refused)},
          {"seconds", number(v.seconds)},
          {"smallest_line", v.smallest_line},
          {"smallest_finding", v.smallest_finding},
          {"reach", reach_json(v)},
          {"matrices", std::move(matrices)},
          {"power", power_json(v)},
          {"peer", peer_json(v)},
          {"cases", std::move(cases)}};
}

}  // namespace quire::report

namespace quire {

std::string to_json(const Verdict& verdict) { return report::printed(report::json_of(verdict)); }

}  // namespace quire
