// SPDX-License-Identifier: Apache-2.0
// quire bench: how fast, as a fraction of what this machine can do; and the comparison of two such reports.
#include "quire/tools/bench.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "commands.h"
#include "commit.h"
#include "files/atomic_file.h"
#include "progress.h"
#include "quire/plan.hpp"
#include "quire/tools/report.hpp"
#include "report/html/page.h"
#include "report/json/json.h"
#include "suggest.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

using report::json_of;

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::io_error, formatted("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return Status(Code::io_error, formatted("{}: cannot be read", path));
  return text;
}

/// Words with blanks are problem lines of their own; words without are the parts of one, or the path of one capture.
void add_words(const Words& words, std::vector<BenchInput>& inputs) {
  Words parts;
  for (const std::string& word : words) {
    const bool whole = word.find(' ') != std::string::npos;
    if (whole) inputs.push_back({.name = {}, .line = word, .capture = {}});
    if (!whole) parts.push_back(word);
  }
  if (parts.empty()) return;
  if (names_a_file(parts)) return inputs.push_back({.name = parts[0], .line = {}, .capture = parts[0]});
  inputs.push_back({.name = {}, .line = title_of(parts), .capture = {}});
}

Status add_case_file(const std::string& path, std::vector<BenchInput>& inputs) {
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return text.status();
  const Result<std::vector<ProblemLine>> lines = parse_problem_lines(text.value());
  if (!lines.ok()) return {lines.status().code(), formatted("{}: {}", path, lines.status().message())};
  for (const ProblemLine& line : lines.value()) inputs.push_back({.name = {}, .line = to_string(line), .capture = {}});
  return {};
}

Result<std::vector<BenchInput>> inputs_of(const BenchArgs& args) {
  std::vector<BenchInput> inputs;
  add_words(args.input, inputs);
  for (const std::string& path : args.cases)
    if (Status s = add_case_file(path, inputs); !s.ok()) return s;
  for (const std::string& path : args.captures) inputs.push_back({.name = path, .line = {}, .capture = path});
  for (const std::string& name : args.workloads) {
    Result<std::vector<BenchInput>> all = workload(name);
    if (!all.ok()) return all.status();
    inputs.insert(inputs.end(), all->begin(), all->end());
  }
  return inputs;
}

std::string coloured(const BenchReport& report, const Terminal& terminal) {
  const std::string text = printable(to_string(report));
  const std::size_t last = text.rfind('\n', text.size() - 2) + 1;
  const std::string line = text.substr(last, text.size() - last - 1);
  return text.substr(0, last) + (report.ok ? green(line, terminal) : red(line, terminal)) + "\n";
}

bool all_refused(const BenchReport& report) {
  for (const BenchCaseResult& c : report.cases)
    for (const BenchResult& r : c.results)
      if (r.status != BenchStatus::refused) return false;
  return true;
}

/// "case 3 of 4: ..." -> a half; 0 for other words.
double share_done(const std::string& what) {
  int at = 0, all = 0;
  const bool placed = std::sscanf(what.c_str(), "case %d of %d:", &at, &all) == 2 && all > 0;
  return placed ? static_cast<double>(at - 1) / all : 0;
}

BenchOptions options_of(const BenchArgs& args, Progress& progress) {
  BenchOptions options;
  options.device = args.device;
  options.kernels = args.kernels;
  options.threads = args.threads;
  options.batch_invariant = args.batch_invariant;
  options.seconds = args.seconds;
  options.verify = !args.no_verify;
  options.commit = commit();
  options.progress = [&progress](const std::string& what) {
    progress.say(what, share_done(what));
    return true;
  };
  return options;
}

Result<BenchReport> measure(const std::vector<BenchInput>& inputs, const BenchArgs& args, const Terminal& terminal) {
  Progress progress(terminal, "bench");
  return bench(inputs, options_of(args, progress));
}

}  // namespace

Report run_bench(const BenchArgs& args, const Terminal& terminal) {
  const std::vector<std::string> names = kernel_names();
  for (const std::string& kernel : args.kernels)
    if (std::find(names.begin(), names.end(), kernel) == names.end())
      return Report::usage(formatted("no kernel named '{}'; known kernels: {}", kernel, fmt::join(names, ", ")),
                           did_you_mean(kernel, names));
  const Result<std::vector<BenchInput>> inputs = inputs_of(args);
  if (!inputs.ok()) return Report::failure(inputs.status());
  if (inputs->empty())
    return Report::usage("nothing to time: give problem lines, --cases, --capture or --workload",
                         formatted("workloads: {}", fmt::join(workload_names(), ", ")));
  const Result<BenchReport> measured = measure(inputs.value(), args, terminal);
  if (!measured.ok()) return Report::failure(measured.status());

  Report report;
  report.exit_code = measured->ok ? kOk : all_refused(measured.value()) ? kUnsupported : kFindings;
  report.text = coloured(measured.value(), terminal);
  report.json = json_of(measured.value());
  report.json["exit_code"] = report.exit_code;
  if (!args.save.empty()) {
    if (const Status s = files::write_whole(args.save, report.json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
        !s.ok())
      return Report::failure(s);
    report.text += formatted("wrote {}\n", printable_line(args.save));
  }
  if (!args.html.empty()) {
    if (const Status s = files::write_whole(args.html, report::page_of(report.json)); !s.ok()) return Report::failure(s);
    report.text += formatted("wrote {}\n", printable_line(args.html));
  }
  return report;
}

Report run_bench_compare(const BenchCompareArgs& args) {
  const Result<std::string> before = read_file(args.before), after = read_file(args.after);
  if (!before.ok()) return Report::failure(before.status());
  if (!after.ok()) return Report::failure(after.status());
  const Result<BenchComparison> comparison = compare_bench(before.value(), after.value(), args.force);
  if (!comparison.ok())
    return Report::failure(comparison.status(),
                           comparison.status().code() == Code::invalid_argument ? "--force compares them all the same" : "");
  Report report;
  const bool slower = std::any_of(comparison->changes.begin(), comparison->changes.end(),
                                  [](const BenchChange& c) { return c.verdict == BenchChangeVerdict::slow; });
  report.exit_code = slower ? kFindings : kOk;
  report.text = printable(to_string(comparison.value()));
  report.json = json_of(comparison.value());
  report.json["ok"] = !slower;
  report.json["exit_code"] = report.exit_code;
  return report;
}

}  // namespace quire::cli
