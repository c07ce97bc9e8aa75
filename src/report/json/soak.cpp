// SPDX-License-Identifier: Apache-2.0
// A soak as JSON (verify.md).
#include <utility>

#include "quire/report.hpp"
#include "report/json/json.h"

namespace quire::report {

Json json_of(const std::vector<SoakCounts>& counts) {
  Json list = Json::array();
  for (const SoakCounts& c : counts)
    list.push_back({{"target", c.target},
                    {"cases", c.cases},
                    {"passed", c.passed},
                    {"failed", c.failed},
                    {"refused", c.refused},
                    {"num_elements", c.num_elements},
                    {"num_compared", c.num_compared},
                    {"worst_ratio", c.worst_ratio}});
  return list;
}

Json json_of(const SoakResult& r) {
  Json findings = Json::array();
  for (const SoakFinding& f : r.findings)
    findings.push_back({{"target", f.target},
                        {"check", f.check},
                        {"text", f.text},
                        {"line", f.line},
                        {"reduced_line", f.reduced_line},
                        {"reduced_finding", f.reduced_finding}});
  return {{"quire_soak", 1},
          {"seed", r.seed},
          {"first", r.first},
          {"next", r.next},
          {"seconds", r.seconds},
          {"total_seconds", r.total_seconds},
          {"counts", json_of(r.counts)},
          {"findings", std::move(findings)},
          {"interrupted", r.interrupted}};
}

}  // namespace quire::report

namespace quire {

std::string to_json(const SoakResult& result) { return report::printed(report::json_of(result)); }

}  // namespace quire
