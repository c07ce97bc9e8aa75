// plan(): from a problem and a device to the printable value that says all that attend() will do.
#include "quire/plan.hpp"

#include <algorithm>
#include <new>

#include "plan/scratch.h"
#include "plan/select.h"
#include "plan/work_list.h"
#include "quire/contract.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

/// A Problem may come from text or be written by hand; what check() guarantees for a batch is asked here again.
Status sanity(const Problem& p) {
  const auto bad = [](std::string text) { return Status(Code::invalid_argument, "plan: " + std::move(text)); };
  if (p.num_kv_heads < 1 || p.num_q_heads < 1 || p.num_q_heads % p.num_kv_heads != 0)
    return bad(formatted("num_q_heads {} is not a positive multiple of num_kv_heads {}", p.num_q_heads, p.num_kv_heads));
  if (p.head_dim < 1 || p.page_size < 1)
    return bad(formatted("head_dim {} and page_size {} must be >= 1", p.head_dim, p.page_size));
  if (p.sliding_window && *p.sliding_window < 1) return bad(formatted("sliding_window {} must be >= 1", *p.sliding_window));
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 31;
  constexpr std::int64_t kMaxKeys = std::int64_t{1} << 40;  // item, segment and byte counts stay far from overflow
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    const Request& q = p.reqs[r];
    if (q.query_len < 0 || q.context_len < 0 || q.query_len >= kMaxRows || q.context_len >= kMaxKeys)
      return bad(formatted("request {}: query_len {} outside [0, 2^31) or context_len {} outside [0, 2^40)", r, q.query_len,
                           q.context_len));
    if (q.cached_len < q.context_len || q.cached_len > q.seq_len())
      return bad(formatted("request {}: cached_len {} outside [{}, {}]", r, q.cached_len, q.context_len, q.seq_len()));
  }
  return {};
}

Status no_kernel(const Device& device, const PlanSettings& settings, const plan_detail::Selection& selection) {
  std::string text = settings.kernel.empty() ? formatted("no kernel of this build takes the problem on device {}", device.name)
                                             : formatted("kernel {} cannot be used on device {}", settings.kernel, device.name);
  if (selection.refusals.empty()) text += ": there is no kernel of that name (see kernels())";
  for (const Refusal& refusal : selection.refusals) text += formatted("\n  {}: {}", refusal.kernel, refusal.reason);
  return {Code::unsupported, std::move(text)};
}

}  // namespace

bool Plan::operator==(const Plan& o) const {
  const auto same_refusals =
      std::equal(refusals.begin(), refusals.end(), o.refusals.begin(), o.refusals.end(),
                 [](const Refusal& a, const Refusal& b) { return a.kernel == b.kernel && a.reason == b.reason; });
  return same_refusals && problem == o.problem && device == o.device && kernel == o.kernel &&
         batch_invariant == o.batch_invariant && tile_q == o.tile_q && tile_kv == o.tile_kv && split_keys == o.split_keys &&
         direct_rows == o.direct_rows && tiles == o.tiles && num_partials == o.num_partials &&
         scratch_bytes_per_thread == o.scratch_bytes_per_thread && num_threads == o.num_threads && kv_bytes == o.kv_bytes &&
         flops == o.flops;
}

namespace {

Result<Plan> make_plan(Problem&& problem, const Device& device, const PlanSettings& settings) {
  if (Status s = sanity(problem); !s.ok()) return s;
  plan_detail::Selection selection = plan_detail::select(problem, device, settings.kernel);
  if (selection.row == nullptr) return no_kernel(device, settings, selection);

  Plan plan;
  plan.problem = std::move(problem);
  plan.device = device;
  plan.kernel = selection.row->info.name;
  plan.refusals = std::move(selection.refusals);
  plan.batch_invariant = settings.batch_invariant;
  plan.num_threads = std::max(1, settings.num_threads > 0 ? settings.num_threads : device.num_threads);
  plan_detail::cut_work(plan);
  plan.scratch_bytes_per_thread = plan_detail::scratch_bytes(plan);
  return plan;
}

}  // namespace

Result<Plan> plan(Problem problem, const Device& device, const PlanSettings& settings) {
  const std::size_t num_reqs = problem.reqs.size();
  try {
    return make_plan(std::move(problem), device, settings);
  } catch (const std::bad_alloc&) {
    return Status(Code::out_of_memory, formatted("plan: no memory for the work list of {} requests", num_reqs));
  }
}

Result<Plan> plan(const Batch& batch, const KVCache& cache, const Options& options, const PlanSettings& settings) {
  const Findings findings = check(batch, cache, options, Depth::tables);
  if (!findings.ok()) return findings.status();
  return plan(problem_of(batch, cache, options), host_device(), settings);
}

std::size_t workspace_bytes(const Plan& plan) noexcept {
  return static_cast<std::size_t>(plan_detail::workspace_of(plan).floats) * sizeof(float);
}

std::string to_string(const Plan& plan) {
  return formatted(
      "{} device={} threads={} tile={}x{} split={} direct={} items={} merges={} partials={} batch_invariant={} workspace={} "
      "kv_bytes={} "
      "flops={:.4g}",
      plan.kernel, plan.device.name, plan.num_threads, plan.tile_q * plan.problem.group(), plan.tile_kv, plan.split_keys,
      plan.direct_rows, plan.num_items(), plan.num_merges(), plan.num_partials, plan.batch_invariant ? "yes" : "no",
      workspace_bytes(plan), plan.kv_bytes, plan.flops);
}

}  // namespace quire
