// SPDX-License-Identifier: Apache-2.0
// Stage: plan. Says which kernel serves a problem on a device, why every other kernel does not, and what the plan will do.
// explain() asks the kernel rows and the plan() that attend() relies on, so its answer cannot differ from the real choice.

#include "plan/select.h"
#include "quire/plan.hpp"
#include "quire/roofline.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

using plan_detail::kernel_rows;
using plan_detail::KernelRow;

/// 1536 -> "1.5 KiB"; exact below 1 KiB.
std::string human_bytes(double bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return formatted("{:.0f} B", bytes);
  int unit = -1;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return formatted("{:.4g} {}", bytes, kUnits[unit]);
}

/// 1.23e9 -> "1.23 GFLOP".
std::string human_flops(double flops) {
  constexpr const char* kUnits[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"};
  int unit = 0;
  while (flops >= 1000 && unit < 5) {
    flops /= 1000;
    ++unit;
  }
  return formatted("{:.4g} {}", flops, kUnits[unit]);
}

std::string device_line(const Device& d) {
  const char* unit = d.backend == Backend::cpu ? "threads" : d.backend == Backend::cuda ? "SMs" : "CUs";
  return formatted("{}{}{} ({}, {} {}, L2 {}{})", d.name, d.product.empty() ? "" : ", ", d.product, name(d.backend),
                   d.num_threads, unit, human_bytes(static_cast<double>(d.l2_bytes)),
                   d.backend == Backend::cpu ? " per core" : "");
}

/// Returns every reason for not using a row; a row that could have served gets the name of the row that came first.
std::vector<Refusal> refusals_of_others(const Problem& problem, const Device& device, const PlanSettings& settings,
                                        KernelHandle chosen) {
  std::vector<Refusal> refusals;
  const std::string_view why_first = chosen == KernelHandle() ? plan_detail::kFirstInTable : chosen.row().why_first;
  for (const KernelRow* row : kernel_rows()) {
    if (chosen == *row) continue;
    const std::vector<std::string> reasons = plan_detail::refusals_of(*row, problem, device);
    for (const std::string& reason : reasons) refusals.push_back({std::string(row->info.name), reason});
    if (!reasons.empty()) continue;
    const bool forced = !settings.kernel.empty();
    const std::string slower = row->slower(device);
    refusals.push_back({std::string(row->info.name),
                        forced            ? formatted("takes it too, but {} is forced", settings.kernel)
                        : !slower.empty() ? "takes it too, but " + slower
                                          : formatted("takes it too, but {} comes first: {}", chosen.name(), why_first)});
  }
  return refusals;
}

Backend backend_of(std::string_view kernel) {
  for (const KernelRow* row : kernel_rows())
    if (row->info.name == kernel) return row->info.backend;
  return Backend::cpu;
}

/// Bytes and operations, and the time that they take at least, where the device's ceilings were measured.
std::string floor_text(const Plan& p) {
  const std::string work = formatted("{} of K and V, {}", human_bytes(static_cast<double>(p.kv_bytes)), human_flops(p.flops));
  if (p.device.backend == Backend::cpu) return formatted("floor     {}\n", work);
  const Roofline floor = roofline_of(p);
  if (!floor.known()) return formatted("floor     {}; no time: {}\n", work, floor.why_not);
  return formatted("floor     {}: {:.1f} us on an {}, bound by {} (reading {:.1f}, computing {:.1f})\n", work,
                   floor.seconds() * 1e6, floor.device, floor.binds(), floor.read_seconds() * 1e6, floor.compute_seconds() * 1e6);
}

std::string rounding_text(const Plan& p, const plan_detail::DeviceList& list) {
  const plan_detail::Body& body = plan_detail::body_of(list);
  if (!body.rounds_weights) return "";
  const bool f16 = body.f16_weights_over_codes && is_fp8(p.problem.kv_dtype);
  return formatted("; weights rounded to {}", name(f16 ? DType::f16 : p.problem.q_dtype));
}

std::string device_plan_text(const Plan& p, const std::string& decode_reason) {
  std::string text = formatted("plan      {}\n", to_string(p));
  if (!decode_reason.empty()) text += formatted("decode    {}\n", decode_reason);
  text += formatted("sized for {} requests, {} tokens, query_len <= {}, seq_len <= {}; the device reads the lengths\n",
                    p.bounds.num_reqs, p.bounds.num_tokens, p.bounds.max_query_len, p.bounds.max_seq_len);
  for (const std::string& assumption : p.assumptions) text += formatted("assumes   {}\n", assumption);
  for (const plan_detail::DeviceList& list : p.work().lists) {
    text += formatted("tiles     {}: {} score rows (query rows x {} group{}) by {} keys, on {} blocks{}{}{}\n",
                      plan_detail::body_of(list).name, list.tile_rows, p.problem.group(),
                      list.heads > 1 ? formatted(" x {} KV heads", list.heads) : "", list.tile_keys, list.num_blocks,
                      list.cluster > 1 ? formatted(" in clusters of {}", list.cluster) : "", rounding_text(p, list),
                      list.beside ? "; at the same time as the list before it" : "");
    text += formatted(
        "splits    {}: at most {} slices, {} merges, {} partial tiles\n",
        list.split_keys > 0 ? formatted("every {} keys", list.split_keys) : formatted("for about {} items", list.target_items),
        list.max_slices, list.max_merges, list.max_partials);
  }
  text += formatted("workspace {} on the device\n", human_bytes(static_cast<double>(workspace_bytes(p))));
  return p.assumptions.empty() ? text + floor_text(p) : text;
}

std::string plan_text(const Plan& p, const std::string& decode_reason) {
  if (p.device.backend != Backend::cpu) return device_plan_text(p, decode_reason);
  std::string text = formatted("plan      {}\n", to_string(p));
  text += formatted("tiles     {} query rows x {} group = {} rows, by {} keys\n", p.tile_q, p.problem.group(),
                    p.tile_q * p.problem.group(), p.tile_kv);
  text += formatted("splits    every {} keys: {} partial rows, {} merges\n", p.split_keys, p.num_partials, p.num_merges());
  text += formatted("work      {} items on {} threads, the busiest has {:.3f} of the mean, workspace {}\n", p.num_items(),
                    p.num_threads, load_imbalance(p), human_bytes(static_cast<double>(workspace_bytes(p))));
  return text + floor_text(p);
}

std::string render(const Explanation& e, const Result<Plan>& planned) {
  std::string text = formatted("problem   {}\ndevice    {}\n", to_string(e.problem), device_line(e.device));
  if (!e.chosen.empty()) {
    text += formatted("kernel    {}\n", e.chosen);
  } else {
    const std::string& why = planned.status().message();  // further lines of the message repeat the refusals below
    text += formatted("kernel    none: {}\n", why.substr(0, why.find('\n')));
  }
  std::vector<std::string_view> elsewhere;
  for (const Refusal& r : e.refusals) {
    const bool other = backend_of(r.kernel) != e.device.backend;
    if (other)
      elsewhere.push_back(r.kernel);
    else
      text += formatted("rejected  {}: {}\n", r.kernel, r.reason);
  }
  if (!elsewhere.empty()) text += formatted("rejected  {}: kernels of other backends\n", fmt::join(elsewhere, ", "));
  if (planned.ok()) text += plan_text(planned.value(), e.decode_reason);
  return text;
}

}  // namespace

Explanation explain(const Problem& problem, const Device& device, const PlanSettings& settings) {
  Explanation e;
  e.problem = problem;
  e.device = device;
  const Result<Plan> planned = plan(problem, device, settings);
  if (planned.ok()) {
    e.chosen = planned->kernel.name();
    e.plan_line = to_string(planned.value());
    const plan_detail::GpuTraits* gpu = planned->kernel.row().gpu;
    if (gpu != nullptr && gpu->decode_reason != nullptr) e.decode_reason = gpu->decode_reason(planned.value());
  }
  const bool asked_rows = planned.ok() || planned.status().code() == Code::unsupported;
  if (asked_rows) e.refusals = refusals_of_others(problem, device, settings, planned.ok() ? planned->kernel : KernelHandle());
  e.text = render(e, planned);
  return e;
}

}  // namespace quire
