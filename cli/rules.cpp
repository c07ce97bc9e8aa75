// SPDX-License-Identifier: Apache-2.0
// quire rules: the contract rules, or one of them with its reason and an example.
#include "commands.h"
#include "suggest.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

Json rule_json(const Rule& r) {
  return {{"id", r.id}, {"depth", depth_name(r.depth)}, {"statement", r.statement}, {"why", r.why}, {"example", r.example}};
}

}  // namespace

Report run_rules(const std::string& id, const Terminal& terminal) {
  Report report;
  Json list = Json::array();
  for (const Rule& r : rules()) {
    if (!id.empty() && r.id != id) continue;
    list.push_back(rule_json(r));
    report.text += id.empty() ? formatted("{}  {:<8}  {}\n", bold(r.id, terminal), depth_name(r.depth), r.statement)
                              : formatted("{}  ({})\n{}\n\nWhy: {}\n\nBreaks it: {}\n", bold(r.id, terminal), depth_name(r.depth),
                                          r.statement, r.why, r.example);
  }
  if (list.empty())
    return Report::usage(formatted("no rule '{}'; `quire rules` lists them all", id.substr(0, 64)), did_you_mean(id, rule_ids()));
  report.json = {{"schema", "quire.rules/1"}, {"ok", true}, {"exit_code", kOk}, {"rules", list}};
  return report;
}

}  // namespace quire::cli
