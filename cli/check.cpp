// SPDX-License-Identifier: Apache-2.0
// quire check: applies the contract and lists every finding.
#include "commands.h"
#include "progress.h"
#include "text/formatted.h"

namespace quire::cli {

Json findings_json(const Findings& findings) {
  Json list = Json::array();
  for (const Finding& f : findings.items) {
    list.push_back({{"rule", f.rule},
                    {"tensor", f.tensor},
                    {"index", f.index},
                    {"value", f.value},
                    {"expected", f.expected},
                    {"message", f.message}});
  }
  return list;
}

Report run_check(const CheckArgs& args, const Terminal& terminal) {
  const Result<Case> input = case_of(args.input, terminal);
  if (!input.ok()) return Report::failure(input.status());
  Findings findings;
  {
    const Progress progress(terminal, "checking");
    findings = check(input->batch, input->cache, input->options, args.depth);
  }
  Report report;
  report.exit_code = findings.ok() ? kOk : kFindings;
  report.json = {{"schema", "quire.check/1"},          {"ok", findings.ok()},
                 {"exit_code", report.exit_code},      {"input", title_of(args.input)},
                 {"depth", depth_name(args.depth)},    {"total", findings.total},
                 {"findings", findings_json(findings)}};
  for (const Finding& f : findings.items) report.text += printable(f.message) + "\n";
  const auto listed = static_cast<std::int64_t>(findings.items.size());
  if (listed < findings.total) report.text += formatted("... and {} more of the same rules\n", findings.total - listed);
  report.text += findings.ok()
                     ? formatted("{}: 0 findings at depth {}\n", green("ok", terminal), depth_name(args.depth))
                     : formatted("{}: {} finding{} at depth {}; `quire rules ID` explains a rule\n", red("broken", terminal),
                                 findings.total, findings.total == 1 ? "" : "s", depth_name(args.depth));
  return report;
}

}  // namespace quire::cli
