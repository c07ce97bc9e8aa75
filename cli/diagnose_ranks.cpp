// SPDX-License-Identifier: Apache-2.0
// quire diagnose with several captures: one for each rank that shares a context.
#include <algorithm>
#include <chrono>

#include "commands.h"
#include "progress.h"
#include "quire/report.hpp"
#include "report/json/json.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

Result<std::vector<Case>> captures_of(const Words& files) {
  std::vector<Case> captures;
  for (const std::string& file : files) {
    Result<Case> c = map_capture(file);
    if (!c.ok()) return c.status();
    if (c->notes.count(std::string(kRankNote)) == 0)
      return Status(Code::invalid_argument,
                    formatted("{}: it has no note \"{}\"; several files are the captures of the ranks of one "
                              "call, which quire.distributed.attend(..., capture=) writes",
                              file, kRankNote));
    c->notes[std::string(kFileNote)] = file;
    captures.push_back(std::move(c).value());
  }
  return captures;
}

}  // namespace

bool names_several_files(const Words& words) {
  return words.size() > 1 &&
         std::all_of(words.begin(), words.end(), [](const std::string& word) { return names_a_file({word}); });
}

Report run_diagnose_ranks(const DiagnoseArgs& args, const Terminal& terminal) {
  if (!args.html.empty() || !args.reduced.empty())
    return Report::usage("--html and --reduced are for one capture; several captures are those of ranks");
  const auto start = std::chrono::steady_clock::now();
  const Result<std::vector<Case>> captures = captures_of(args.input);
  if (!captures.ok()) return Report::failure(captures.status());
  DiagnoseOptions options;
  options.full = args.full;
  options.seconds = args.seconds;
  options.reference_seconds = kReferenceSeconds;
  Result<RankDiagnosis> d = [&] {
    const Progress progress(terminal, "comparing ranks");
    return diagnose_ranks(captures.value(), options);
  }();
  if (!d.ok()) return Report::failure(d.status());
  Report report;
  report.exit_code = d->verdict == DiagnosisVerdict::right ? kOk : kFindings;
  report.json = {{"schema", "quire.diagnose_ranks/1"}, {"ok", report.exit_code == kOk}, {"exit_code", report.exit_code}};
  report.json.update(report::json_of(d.value()));
  report.json["files"] = args.input;
  report.text = printable(to_string(d.value(), {.columns = terminal.columns, .verbose = args.verbose}));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.json["seconds"] = elapsed.count();
  if (args.verbose) report.text += formatted("time     {:.2f} s\n", elapsed.count());
  if (!args.verbose && report.exit_code != kOk) report.text += "more     --verbose prints all of it\n";
  return report;
}

}  // namespace quire::cli
