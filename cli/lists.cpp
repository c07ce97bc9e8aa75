// SPDX-License-Identifier: Apache-2.0
// quire devices, kernels and rules: what there is to choose from and to break.
#include <algorithm>

#include "commands.h"
#include "quire/plan.hpp"
#include "suggest.h"
#include "text/formatted.h"

namespace quire::cli {
namespace {

std::string feature_names(std::uint32_t features) {
  std::string out;
  for (const auto& [bit, text] : {std::pair{kAvx2, "avx2"}, std::pair{kAvx512, "avx512"}, std::pair{kAvx512Bf16, "avx512bf16"},
                                  std::pair{kAmxBf16, "amx"}, std::pair{kNeon, "neon"}}) {
    if ((features & bit) == 0) continue;
    if (!out.empty()) out += "+";
    out += text;
  }
  return out.empty() ? "-" : out;
}

std::string size_text(std::int64_t bytes) {
  const bool whole_mib = bytes % (1 << 20) == 0;
  return whole_mib ? formatted("{} MiB", bytes >> 20) : formatted("{} KiB", bytes >> 10);
}

Json device_json(const Device& d, bool host) {
  return {{"name", d.name},
          {"host", host},
          {"backend", name(d.backend)},
          {"features", feature_names(d.cpu_features)},
          {"num_threads", d.num_threads},
          {"l2_bytes", d.l2_bytes}};
}

std::string device_row(const Device& d, const char* what) {
  return formatted("{:<11} {:<7} {:>8} {:>9}  {:<24} {}\n", d.name, name(d.backend), d.num_threads, size_text(d.l2_bytes),
                   feature_names(d.cpu_features), what);
}

/// Lists this machine's CPU and the GPUs that this build has kernels for.
std::vector<Device> own_devices() {
  std::vector<Device> all = gpu_devices();
  all.insert(all.begin(), host_device());
  return all;
}

bool runs_here(const Kernel& kernel, const std::vector<Device>& devices) {
  return std::any_of(devices.begin(), devices.end(), [&](const Device& device) {
    return kernel.backend == device.backend && (kernel.cpu_features & ~device.cpu_features) == 0;
  });
}

std::string needs_text(const Kernel& kernel) {
  if (kernel.backend != Backend::cpu) return formatted("needs a {} device", name(kernel.backend));
  return kernel.cpu_features == 0 ? "needs no instruction set" : "needs " + feature_names(kernel.cpu_features);
}

Json rule_json(const Rule& r) {
  return {{"id", r.id}, {"depth", depth_name(r.depth)}, {"statement", r.statement}, {"why", r.why}, {"example", r.example}};
}

}  // namespace

Report run_devices(const Terminal& terminal) {
  Report report;
  report.text =
      bold(formatted("{:<11} {:<7} {:>8} {:>9}  {:<24} {}", "name", "backend", "threads", "L2", "features", ""), terminal);
  report.text.erase(report.text.find_last_not_of(' ') + 1);
  report.text += "\n";
  Json list = Json::array();
  for (const Device& device : own_devices()) {
    const std::string what = device.ordinal < 0 ? "this machine" : formatted("GPU {}, {}", device.ordinal, device.product);
    report.text += device_row(device, what.c_str());
    list.push_back(device_json(device, /*host=*/true));
  }
  for (const Device& device : known_devices()) {
    report.text += device_row(device, "pretended");
    list.push_back(device_json(device, /*host=*/false));
  }
  report.text += "threads: cores, SMs or CUs; L2: per core on CPUs, per device on GPUs.\n";
  // Reason why there is no GPU: the toolkit that the build lacked, or the library or device that the machine lacks.
  const std::string why_none = gpu_devices().empty() ? gpu_device().status().message() : "";
  if (!why_none.empty()) report.text += "no GPU: " + why_none + "\n";
  report.json = {{"schema", "quire.devices/1"}, {"ok", true}, {"exit_code", kOk}, {"devices", list}, {"why_no_gpu", why_none}};
  return report;
}

Report run_kernels(const Terminal& terminal) {
  const std::vector<Device> devices = own_devices();
  Report report;
  Json list = Json::array();
  for (const Kernel& k : kernels()) {
    const bool here = runs_here(k, devices);
    report.text += formatted("{}  {}, {}, {}\n", bold(k.name, terminal), name(k.backend), needs_text(k),
                             here ? green("runs here", terminal) : "not on this machine");
    report.text += formatted("    takes {}\n    {}\n", k.takes, k.description);
    list.push_back({{"name", k.name},
                    {"backend", name(k.backend)},
                    {"features", feature_names(k.cpu_features)},
                    {"takes", k.takes},
                    {"description", k.description},
                    {"runs_here", here}});
  }
  report.text += "In order of preference; `quire explain PROBLEM` says which one a problem gets and why.\n";
  report.json = {{"schema", "quire.kernels/1"}, {"ok", true}, {"exit_code", kOk}, {"kernels", list}};
  return report;
}

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
