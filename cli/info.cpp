// SPDX-License-Identifier: Apache-2.0
// quire info: what one is asked for in a bug report, what would run here and why, and the lists of devices and kernels.
#include <algorithm>
#include <utility>
#include <vector>

#include "commands.h"
#include "commit.h"
#include "quire/plan.hpp"
#include "text/formatted.h"

namespace quire::cli {
namespace {

// A chat model's step: 8 KV heads, 128 dims, bf16, one prompt of 512 tokens and 31 rows of decode.
constexpr const char* kTypical = "q=bf16 kv=bf16 heads=32:8 d=128 page=16 reqs=1x512,31x1@2048";

std::string compiler() {
#if defined(__clang__)
  return formatted("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return formatted("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string backends() {
  std::string names;
  for (const Backend backend : {Backend::cpu, Backend::cuda, Backend::hip})
    if (has_backend(backend)) names += (names.empty() ? "" : ", ") + std::string(name(backend));
  return names;
}

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

/// This machine's CPU and the GPUs that this build has kernels for.
std::vector<Device> own_devices() {
  std::vector<Device> all = gpu_devices();
  all.insert(all.begin(), host_device());
  return all;
}

Json facts_json(const Device& d) {
  return {{"name", d.name},
          {"backend", name(d.backend)},
          {"features", feature_names(d.cpu_features)},
          {"num_threads", d.num_threads},
          {"l2_bytes", d.l2_bytes}};
}

/// One of this machine's devices, and what it would run.
Json own_device_json(const Device& device, const Explanation& e) {
  Json refused = Json::array(), json = facts_json(device);
  for (const Refusal& r : e.refusals) refused.push_back({{"kernel", r.kernel}, {"reason", r.reason}});
  json["product"] = device.product;
  json["kernel"] = e.chosen;
  json["refusals"] = refused;
  return json;
}

std::string choice_text(const Device& device, const Explanation& e) {
  const std::string what = device.product.empty() ? "this CPU" : device.product;
  std::string text = formatted("device    {}: {}, {} {}\n", device.name, what, device.num_threads,
                               device.backend == Backend::cpu ? "threads" : "SMs or CUs");
  text += formatted("runs      {}\n", e.chosen.empty() ? "nothing: no kernel of this build" : e.chosen);
  for (const Refusal& r : e.refusals)
    if (!r.reason.starts_with("is a ")) text += formatted("rejected  {}: {}\n", r.kernel, r.reason);
  return text;
}

std::string device_row(const Device& d, const std::string& what) {
  return formatted("{:<11} {:<7} {:>8} {:>9}  {:<24} {}\n", d.name, name(d.backend), d.num_threads, size_text(d.l2_bytes),
                   feature_names(d.cpu_features), what);
}

std::string devices_text(const std::vector<Device>& own, const std::string& why_none, const Terminal& terminal) {
  std::string text =
      bold(formatted("{:<11} {:<7} {:>8} {:>9}  {:<24} {}", "name", "backend", "threads", "L2", "features", ""), terminal);
  text.erase(text.find_last_not_of(' ') + 1);
  text += "\n";
  for (const Device& device : own)
    text += device_row(device, device.ordinal < 0 ? "this machine" : formatted("GPU {}, {}", device.ordinal, device.product));
  for (const Device& device : known_devices()) text += device_row(device, "pretended");
  text += "threads: cores, SMs or CUs; L2: per core on CPUs, per device on GPUs.\n";
  return why_none.empty() ? text : text + "no GPU: " + why_none + "\n";
}

bool runs_here(const Kernel& kernel, const std::vector<Device>& own) {
  return std::any_of(own.begin(), own.end(), [&](const Device& device) {
    return kernel.backend == device.backend && (kernel.cpu_features & ~device.cpu_features) == 0;
  });
}

std::string needs_text(const Kernel& kernel) {
  if (kernel.backend != Backend::cpu) return formatted("needs a {} device", name(kernel.backend));
  return kernel.cpu_features == 0 ? "needs no instruction set" : "needs " + feature_names(kernel.cpu_features);
}

std::string kernels_text(const std::vector<Device>& own, const Terminal& terminal) {
  std::string text;
  for (const Kernel& k : kernels()) {
    text += formatted("{}  {}, {}, {}\n", bold(k.name, terminal), name(k.backend), needs_text(k),
                      runs_here(k, own) ? green("runs here", terminal) : "not on this machine");
    text += formatted("    takes {}\n    {}\n", k.takes, k.description);
  }
  return text + "In order of preference; `quire explain PROBLEM` says which one a problem gets and why.\n";
}

Json kernels_json(const std::vector<Device>& own) {
  Json list = Json::array();
  for (const Kernel& k : kernels())
    list.push_back({{"name", k.name},
                    {"backend", name(k.backend)},
                    {"features", feature_names(k.cpu_features)},
                    {"takes", k.takes},
                    {"description", k.description},
                    {"runs_here", runs_here(k, own)}});
  return list;
}

}  // namespace

Report run_info(const std::string& what, const Terminal& terminal) {
  const Result<Problem> problem = problem_of_words({kTypical});
  if (!problem.ok()) return Report::failure(problem.status());
  const std::vector<Device> own = own_devices();
  // Reason why there is no GPU: the toolkit that the build lacked, or the library or device that the machine lacks.
  const std::string why_none = own.size() == 1 ? gpu_device().status().message() : "";
  Report report;
  report.text = formatted("{}\n", bold(formatted("quire {} ({})", QUIRE_VERSION, commit()), terminal));
  report.text += formatted("built     by {}, with kernels for {}\n", compiler(), backends());
  if (!why_none.empty()) report.text += formatted("no GPU    {}\n", why_none);
  report.text += formatted("asked     {}\n", kTypical);
  Json list = Json::array(), pretended = Json::array();
  for (const Device& device : own) {
    const Explanation e = explain(problem.value(), device, {});
    report.text += choice_text(device, e);
    list.push_back(own_device_json(device, e));
  }
  for (const Device& device : known_devices()) pretended.push_back(facts_json(device));
  if (what == "devices") report.text = devices_text(own, why_none, terminal);
  if (what == "kernels") report.text = kernels_text(own, terminal);
  report.json = {{"schema", "quire.info/1"},
                 {"ok", true},
                 {"exit_code", kOk},
                 {"version", QUIRE_VERSION},
                 {"commit", commit()},
                 {"compiler", compiler()},
                 {"backends", backends()},
                 {"problem", kTypical},
                 {"devices", list},
                 {"pretended", pretended},
                 {"kernels", kernels_json(own)},
                 {"why_no_gpu", why_none}};
  return report;
}

}  // namespace quire::cli
