// SPDX-License-Identifier: Apache-2.0
// quire explain: which kernel serves a problem, here or on a named device, and why.
#include <algorithm>

#include "commands.h"
#include "quire/plan.hpp"
#include "quire/roofline.hpp"
#include "suggest.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

Json device_json(const Device& d) {
  return {{"name", d.name}, {"backend", name(d.backend)}, {"num_threads", d.num_threads}, {"l2_bytes", d.l2_bytes}};
}

Json refusals_json(const std::vector<Refusal>& refusals) {
  Json list = Json::array();
  for (const Refusal& r : refusals) list.push_back({{"kernel", r.kernel}, {"reason", r.reason}});
  return list;
}

/// Null for devices whose ceilings were not measured.
Json floor_json(const Roofline& floor) {
  if (!floor.known()) return nullptr;
  return {{"device", floor.device},
          {"us", floor.seconds() * 1e6},
          {"bound_by", floor.binds()},
          {"read_us", floor.read_seconds() * 1e6},
          {"compute_us", floor.compute_seconds() * 1e6},
          {"bytes_per_second", floor.bytes_per_second},
          {"flops_per_second", floor.flops_per_second}};
}

Json plan_json(const Result<Plan>& planned) {
  if (!planned.ok()) return nullptr;
  const Plan& p = planned.value();
  return {{"line", to_string(p)},
          {"kernel", p.kernel.name()},
          {"batch_invariant", p.batch_invariant},
          {"exact_weights", p.exact_weights},
          {"tile_q", p.tile_q},
          {"tile_kv", p.tile_kv},
          {"split_keys", p.split_keys},
          {"work_items", p.num_items()},
          {"merges", p.num_merges()},
          {"num_partials", p.num_partials},
          {"num_threads", p.num_threads},
          {"workspace_bytes", workspace_bytes(p)},
          {"kv_bytes", p.kv_bytes},
          {"flops", p.flops},
          {"floor", floor_json(roofline_of(p))}};
}

Result<std::vector<Device>> devices_asked_for(const ExplainArgs& args) {
  if (args.all) return known_devices();
  if (args.device.empty()) return std::vector<Device>{host_device()};
  const Result<Device> device = find_device(args.device);
  if (!device.ok()) return device.status();
  return std::vector<Device>{device.value()};
}

/// `said`: a line in front of each device's text.
Report explain_quire(const ExplainArgs& args, const Problem& problem, const std::string& said) {
  const Result<std::vector<Device>> devices = devices_asked_for(args);
  if (!devices.ok()) return Report::failure(devices.status(), did_you_mean(args.device, device_names()));
  PlanSettings settings;
  settings.kernel = args.kernel;
  settings.batch_invariant = args.batch_invariant;
  settings.exact_weights = args.exact_weights;

  Report report;
  Json list = Json::array();
  for (const Device& device : devices.value()) {
    const Explanation e = explain(problem, device, settings);
    if (!report.text.empty()) report.text += "\n";
    report.text += said + printable(e.text);
    std::optional<SharedPrefixes> shared;
    if (args.lists.empty()) shared = shared_prefixes_of(args.input, problem, device);
    if (shared) report.text += shared_text(*shared, problem);
    if (e.chosen.empty() && !args.all) report.exit_code = kUnsupported;
    list.push_back({{"device", device_json(device)},
                    {"chosen", e.chosen},
                    {"refusals", refusals_json(e.refusals)},
                    {"decode_reason", e.decode_reason},
                    {"plan", plan_json(plan(problem, device, settings))}});
    if (shared) list.back()["shared"] = shared_json(*shared);
  }
  report.json = {{"schema", "quire.explain/1"},
                 {"ok", report.exit_code == kOk},
                 {"exit_code", report.exit_code},
                 {"problem", to_string(problem)},
                 {"explanations", list}};
  return report;
}

}  // namespace

Report run_explain(const ExplainArgs& args, const Terminal&) {
  Result<Problem> problem = problem_of_words(args.input);
  if (!problem.ok()) return Report::failure(problem.status());
  std::string said;
  if (!args.lists.empty()) {
    problem = problem_of_lists_asked_for(args.lists, problem.value(), said);
    if (!problem.ok()) return Report::failure(problem.status());
  }
  const std::vector<std::string> names = kernel_names();
  const bool known = args.kernel.empty() || std::find(names.begin(), names.end(), args.kernel) != names.end();
  if (!known)
    return Report::usage(formatted("no kernel named '{}'; known kernels: {}", args.kernel, fmt::join(names, ", ")),
                         did_you_mean(args.kernel, names));
  return explain_quire(args, problem.value(), said);
}

}  // namespace quire::cli
