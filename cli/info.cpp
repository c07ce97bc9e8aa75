// SPDX-License-Identifier: Apache-2.0
// quire info: what one is asked for in a bug report, and the answer to "what would run here, and why".
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

Json device_choice(const Device& device, const Problem& problem, std::string& text) {
  const Explanation e = explain(problem, device, {});
  const std::string what = device.product.empty() ? "this CPU" : device.product;
  text += formatted("device    {}: {}, {} {}\n", device.name, what, device.num_threads,
                    device.backend == Backend::cpu ? "threads" : "SMs or CUs");
  text += formatted("runs      {}\n", e.chosen.empty() ? "nothing: no kernel of this build" : e.chosen);
  Json refused = Json::array();
  for (const Refusal& r : e.refusals) {
    refused.push_back({{"kernel", r.kernel}, {"reason", r.reason}});
    if (r.reason.starts_with("is a ")) continue;  // a kernel of another backend
    text += formatted("rejected  {}: {}\n", r.kernel, r.reason);
  }
  return {{"name", device.name},
          {"backend", name(device.backend)},
          {"product", device.product},
          {"kernel", e.chosen},
          {"refusals", refused}};
}

}  // namespace

Report run_info(const Terminal& terminal) {
  const Result<Problem> problem = problem_of_words({kTypical});
  if (!problem.ok()) return Report::failure(problem.status());
  Report report;
  report.text = formatted("{}\n", bold(formatted("quire {} ({})", QUIRE_VERSION, commit()), terminal));
  report.text += formatted("built     by {}, with kernels for {}\n", compiler(), backends());
  const std::string why_none = gpu_devices().empty() ? gpu_device().status().message() : "";
  if (!why_none.empty()) report.text += formatted("no GPU    {}\n", why_none);
  report.text += formatted("asked     {}\n", kTypical);
  std::vector<Device> devices = gpu_devices();
  devices.insert(devices.begin(), host_device());
  Json list = Json::array();
  for (const Device& device : devices) list.push_back(device_choice(device, problem.value(), report.text));
  report.json = {{"schema", "quire.info/1"}, {"ok", true},          {"exit_code", kOk},
                 {"version", QUIRE_VERSION}, {"commit", commit()},  {"compiler", compiler()},
                 {"backends", backends()},   {"problem", kTypical}, {"devices", list},
                 {"why_no_gpu", why_none}};
  return report;
}

}  // namespace quire::cli
