// SPDX-License-Identifier: Apache-2.0
// quire diagnose: where the observed output of a capture is wrong, and why. Writes a reduced capture that shows the same cause.
#include <chrono>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "files/atomic_file.h"
#include "progress.h"
#include "quire/tools/report.hpp"
#include "report/html/page.h"
#include "report/json/json.h"
#include "text/formatted.h"
#include "text/wrap.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

Result<Diagnosis> diagnose_with_progress(const Case& c, const DiagnoseArgs& args, const Terminal& terminal) {
  std::unique_ptr<Progress> shown;
  DiagnoseOptions options;
  if (!args.profile.empty()) {
    const Result<NumericsProfile> profile = parse_profile(args.profile);
    if (!profile.ok()) return profile.status();
    options.profile = profile.value();
  }
  options.full = args.full;
  options.seconds = args.seconds;
  options.reference_seconds = kReferenceSeconds;
  options.progress = [&](const std::string& stage) {
    shown.reset();
    shown = std::make_unique<Progress>(terminal, stage);
  };
  return diagnose(c, options);
}

/// "case.safetensors" -> "case.reduced.safetensors", beside it.
std::string beside(const std::string& file) {
  fs::path path(file);
  return path.replace_extension(".reduced.safetensors").string();
}

/// The report in the width of the terminal, with what the command itself did.
std::string text_of(const Diagnosis& d, const DiagnoseArgs& args, const std::string& reduced, double seconds,
                    const Terminal& terminal) {
  const auto fit = [&](const std::string& line) { return wrapped(line, static_cast<std::size_t>(terminal.columns), 9); };
  const std::string report = printable(to_string(d, {.columns = terminal.columns, .verbose = args.verbose}));
  const std::string html = args.html.empty() ? "" : formatted("html     {}\n", printable_line(args.html));
  if (args.verbose)
    return fit(formatted("file     {}\n", printable_line(title_of(args.input)))) + report +
           fit(reduced + formatted("time     {:.2f} s\n", seconds) + html);
  const bool wrong = d.verdict != DiagnosisVerdict::right && d.verdict != DiagnosisVerdict::broken_batch;
  const char* more = wrong && html.empty() ? "more     --verbose prints all of it, --html FILE draws it\n" : "";
  return report + fit(reduced + html + more);
}

/// The line about the reduced capture. Not being able to write it does not change the diagnosis.
std::string write_reduced(const Case& c, const Diagnosis& d, const DiagnoseArgs& args, Json& json) {
  if (args.no_reduced || d.verdict == DiagnosisVerdict::right || d.verdict == DiagnosisVerdict::broken_batch) return {};
  const std::string path = args.reduced.empty() ? beside(args.input.front()) : args.reduced;
  const Result<Case> reduced = reduce_case(c, d);
  const Status status = reduced.ok() ? write_capture(path, reduced.value()) : reduced.status();
  if (!status.ok()) return formatted("reduced  not written: {}\n", printable_line(status.message()));
  json["reduced"] = path;
  const std::string size = formatted(" ({} of {} rows, {} of {} pages)", reduced->batch.query.shape[0], c.batch.query.shape[0],
                                     num_pages(reduced->cache), num_pages(c.cache));
  return formatted("reduced  {}{}\n", printable_line(path), args.verbose ? size : "");
}

}  // namespace

Report run_diagnose(const DiagnoseArgs& args, const Terminal& terminal) {
  if (args.input.size() > 1) return Report::usage("expected one capture");
  const auto start = std::chrono::steady_clock::now();
  const Result<Case> c = case_of(args.input, terminal);
  if (!c.ok()) return Report::failure(c.status());
  const Result<Diagnosis> d = diagnose_with_progress(c.value(), args, terminal);
  if (!d.ok()) return Report::failure(d.status());
  Report report;
  report.exit_code = d->verdict == DiagnosisVerdict::right ? kOk : kFindings;
  report.json = {{"schema", "quire.diagnose/1"}, {"ok", report.exit_code == kOk}, {"exit_code", report.exit_code}};
  report.json.update(report::json_of(d.value()));
  report.json["file"] = title_of(args.input);
  const std::string reduced = write_reduced(c.value(), d.value(), args, report.json);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.json["seconds"] = elapsed.count();
  report.text = text_of(d.value(), args, reduced, elapsed.count(), terminal);
  if (args.html.empty()) return report;
  const Status status = files::write_whole(args.html, report::page_of(report.json));
  return status.ok() ? report : Report::failure(status);
}

}  // namespace quire::cli
