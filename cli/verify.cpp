// SPDX-License-Identifier: Apache-2.0
// quire verify: runs Quire's kernels through the checks for any kernel, and says how many planted faults it would have noticed.
#include "quire/tools/verify.hpp"

#include <algorithm>
#include <memory>

#include "command_line.h"
#include "commands.h"
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

/// "all" stands for every row of the kernel table that this machine can run.
std::vector<std::string> backends_of(const VerifyArgs& args) {
  if (args.backends.empty()) return {"cpu"};
  if (std::find(args.backends.begin(), args.backends.end(), "all") == args.backends.end()) return args.backends;
  std::vector<std::string> names;
  std::vector<Device> devices = gpu_devices();
  devices.insert(devices.begin(), host_device());
  for (const Kernel& kernel : kernels()) {
    const auto runs = [&](const Device& d) {
      return kernel.backend == d.backend && (kernel.cpu_features & ~d.cpu_features) == 0;
    };
    if (std::any_of(devices.begin(), devices.end(), runs)) names.emplace_back(kernel.name);
  }
  return names;
}

/// "bf16:fp8_e4m3fn"; one name stands for both.
Result<TypePair> type_pair(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string query = text.substr(0, colon), cache = colon < text.size() ? text.substr(colon + 1) : query;
  const std::optional<DType> q = dtype_from_name(query), kv = dtype_from_name(cache);
  if (q && kv) return TypePair{*q, *kv};
  return Status(Code::invalid_argument, formatted("--types {}: '{}' is no type; they are written as f32, f16, bf16, fp8_e4m3fn",
                                                  text, q ? cache : query));
}

Result<VerifyOptions> options_of(const VerifyArgs& args) {
  VerifyOptions options;
  for (const std::string& text : args.types) {
    Result<TypePair> pair = type_pair(text);
    if (!pair.ok()) return pair.status();
    options.types.push_back(pair.value());
  }
  options.head_dims = args.dims;
  for (const std::string& text : args.layouts) options.layouts.push_back(*layout_from_name(text));
  options.matrices = args.matrices;
  if (options.matrices.empty() && args.lines.empty()) options.matrices = {"hazards"};
  options.lines = args.lines;
  options.quick = args.quick;
  options.power = !args.no_power;
  options.peer_power = args.peer;
  options.seed = args.seed;
  options.random_cases = args.cases;
  return options;
}

/// "  hazards ..." lines keep their plain form; the last line gets its colour: green for a pass on every case.
std::string coloured(const Verdict& v, const Terminal& terminal) {
  const std::string text = printable(to_string(v));
  const std::size_t last = text.rfind('\n', text.size() - 2) + 1;
  const bool refused =
      std::any_of(v.cases.begin(), v.cases.end(), [](const CaseResult& c) { return c.status == CaseStatus::refused; });
  const std::string line = text.substr(last, text.size() - last - 1);
  return text.substr(0, last) +
         (v.verdict != VerifyVerdict::pass ? red(line, terminal)
          : refused                        ? line
                                           : green(line, terminal)) +
         "\n";
}

Result<Verdict> verify_backend(const std::string& name, VerifyOptions options, const Terminal& terminal) {
  const Result<Target> target = backend_target(name);
  if (!target.ok()) return target.status();
  const auto progress = std::make_shared<Progress>(terminal, "verifying " + name);
  options.progress = [&](std::int64_t done, std::int64_t total, const std::string& label) {
    progress->say(formatted("verifying {}: {} of {}, {}", name, done, total, label));
    return true;
  };
  return verify(target.value(), options);
}

/// The object that `quire verify --json` prints.
Json envelope(Json verdicts, int exit_code) {
  return {{"schema", "quire.verify/1"}, {"ok", exit_code == kOk}, {"exit_code", exit_code}, {"verdicts", std::move(verdicts)}};
}

}  // namespace

Report no_backend(const std::string& name, const Status& status) {
  std::vector<std::string> known = kernel_names();
  known.insert(known.end(), {"cpu", "cuda", "hip", "cpu_cascade", "cuda_cascade", "hip_cascade", "cpu_lists", "all"});
  return Report::failure(status, status.code() == Code::invalid_argument ? did_you_mean(name, known) : "");
}

Report run_verify(const VerifyArgs& args, const Terminal& terminal) {
  const std::vector<std::string> backends = backends_of(args);
  if (!args.html.empty() && backends.size() != 1)
    return Report::usage("--html writes the page of one backend; name one with --backend");
  const Result<VerifyOptions> options = options_of(args);
  if (!options.ok()) return Report::usage(options.status().message());
  if (args.soak > 0) return run_soak(args, options.value(), backends, terminal);
  Report report;
  Json verdicts = Json::array();
  for (const std::string& name : backends) {
    const Result<Verdict> verdict = verify_backend(name, options.value(), terminal);
    if (!verdict.ok()) return no_backend(name, verdict.status());
    if (!report.text.empty()) report.text += "\n";
    report.text += coloured(verdict.value(), terminal);
    if (verdict->verdict != VerifyVerdict::pass) report.exit_code = kFindings;
    verdicts.push_back(json_of(verdict.value()));
    if (args.html.empty()) continue;
    if (const Status s = files::write_whole(args.html, report::page_of(verdicts.back())); !s.ok()) return Report::failure(s);
    report.text += formatted("wrote {}\n", printable_line(args.html));
  }
  report.json = envelope(std::move(verdicts), report.exit_code);
  return report;
}

std::string verify_json(const Verdict& verdict, int exit_code) {
  return envelope(Json::array({json_of(verdict)}), exit_code).dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace quire::cli
