// SPDX-License-Identifier: Apache-2.0
// quire verify --soak: fresh random batches for every kernel named, until time is up or the user presses Ctrl-C.
#include <csignal>

#include "command_line.h"
#include "commands.h"
#include "progress.h"
#include "quire/tools/report.hpp"
#include "report/json/json.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

volatile std::sig_atomic_t g_stop = 0;

extern "C" void stop_soak(int) { g_stop = 1; }

/// Handles Ctrl-C while an object lives: the first Ctrl-C ends the soak between two cases, the second ends the process.
class StopOnSignal {
 public:
  StopOnSignal() {
    struct sigaction action = {};
    action.sa_handler = stop_soak;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &interrupt_);
    ::sigaction(SIGTERM, &action, &terminate_);
  }
  ~StopOnSignal() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGTERM, &terminate_, nullptr);
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  struct sigaction interrupt_ = {}, terminate_ = {};
};

/// Options of verify that a soak refuses, because it has no use for them.
std::string contradiction(const VerifyArgs& args) {
  if (!args.matrices.empty() || !args.lines.empty()) return "--soak asks random batches alone; leave out --matrix and --line";
  if (args.quick || args.peer) return "--quick and --peer mean nothing with --soak";
  if (!args.html.empty()) return "--html is for a verdict; a soak writes log.txt and findings.txt into its folder";
  return {};
}

/// The object that `quire verify --soak --json` prints.
Json soak_envelope(const SoakResult& result, const std::string& folder, int exit_code) {
  return {{"schema", "quire.soak/1"},
          {"ok", exit_code == kOk},
          {"exit_code", exit_code},
          {"folder", folder},
          {"soak", report::json_of(result)}};
}

}  // namespace

Report run_soak(const VerifyArgs& args, const VerifyOptions& asked, const std::vector<std::string>& backends,
                const Terminal& terminal) {
  if (const std::string text = contradiction(args); !text.empty()) return Report::usage(text);
  std::vector<Target> targets;
  for (const std::string& name : backends) {
    Result<Target> target = backend_target(name);
    if (!target.ok()) return no_backend(name, target.status());
    targets.push_back(std::move(target).value());
  }
  SoakOptions options;
  options.minutes = args.soak;
  options.seed = args.seed;
  options.types = asked.types;
  options.head_dims = asked.head_dims;
  options.layouts = asked.layouts;
  options.directory = args.soak_folder.empty() ? "quire-soak" : args.soak_folder;
  const StopOnSignal stop;
  Result<SoakResult> result = [&] {
    Progress progress(terminal, "soaking");
    options.progress = [&](const std::string& label) {
      progress.say(label);
      return g_stop == 0;
    };
    return soak(targets, options);
  }();
  if (!result.ok()) return Report::failure(result.status());
  Report report;
  report.exit_code = result->ok() ? kOk : kFindings;
  report.text = printable(to_string(result.value())) + formatted("state, log and findings: {}\n", printable(options.directory));
  report.json = soak_envelope(result.value(), options.directory, report.exit_code);
  return report;
}

std::string soak_json(const SoakResult& result, const std::string& folder, int exit_code) {
  return soak_envelope(result, folder, exit_code).dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace quire::cli
