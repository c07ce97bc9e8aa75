// SPDX-License-Identifier: Apache-2.0
// plan(): from a problem and a device to the printable value that says all that attend() will do.
#include "quire/plan.hpp"
#include "batch/caught.h"

#include <algorithm>
#include <cstdint>
#include <new>

#include "device/runtime.h"
#include "plan/device_lists.h"
#include "plan/device_workspace.h"
#include "plan/scratch.h"
#include "plan/select.h"
#include "plan/work_list.h"
#include "quire/contract.hpp"
#include "quire/executor.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

/// Checks a Problem, which may come from text or be written by hand, for the properties that check() guarantees for a batch.
Status sanity(const Problem& p) {
  const auto bad = [](std::string text) { return Status(Code::invalid_argument, "plan: " + std::move(text)); };
  if (p.num_kv_heads < 1 || p.num_q_heads < 1 || p.num_q_heads % p.num_kv_heads != 0)
    return bad(formatted("num_q_heads {} is not a positive multiple of num_kv_heads {}", p.num_q_heads, p.num_kv_heads));
  if (p.head_dim < 1 || p.page_size < 1)
    return bad(formatted("head_dim {} and page_size {} must be >= 1", p.head_dim, p.page_size));
  if (p.v_head_dim < 0) return bad(formatted("v_head_dim {} must be >= 1, or 0 for head_dim", p.v_head_dim));
  if (p.window_right && *p.window_right < 0) return bad(formatted("window_right {} must be >= 0", *p.window_right));
  if (p.sliding_window && *p.sliding_window < 1) return bad(formatted("sliding_window {} must be >= 1", *p.sliding_window));
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 31;
  constexpr std::int64_t kMaxKeys = std::int64_t{1} << 40;  // item, segment and byte counts stay far from overflow
  for (std::size_t r = 0; r < p.reqs.size(); ++r) {
    const Request& q = p.reqs[r];
    const bool few_keys = q.context_len < 0 && !p.is_causal_at_end() && q.seq_len() >= 0;  // the request has more rows than keys
    if (q.query_len < 0 || (q.context_len < 0 && !few_keys) || q.query_len >= kMaxRows || q.context_len >= kMaxKeys)
      return bad(formatted("request {}: query_len {} outside [0, 2^31) or context_len {} outside [0, 2^40)", r, q.query_len,
                           q.context_len));
    if (q.cached_len < std::max<std::int64_t>(0, q.context_len) || q.cached_len > q.seq_len())
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
         batch_invariant == o.batch_invariant && exact_weights == o.exact_weights && tile_q == o.tile_q && tile_kv == o.tile_kv &&
         split_keys == o.split_keys && direct_rows == o.direct_rows && work() == o.work() && num_partials == o.num_partials &&
         scratch_bytes_per_thread == o.scratch_bytes_per_thread && num_threads == o.num_threads && kv_bytes == o.kv_bytes &&
         flops == o.flops && bounds == o.bounds && assumptions == o.assumptions;
}

namespace {

/// Lengths that planning did not read: what stands in for them.
struct Assumed {
  Bounds bounds;
  std::vector<std::string> text;
};

/// Scratch and the balance of work grow with the threads.
Status threads_within_bounds(const Device& device, const PlanSettings& settings) {
  const auto bad = [](const char* of, int count, int least) {
    return Status(Code::invalid_argument, formatted("plan: {}num_threads {} outside [{}, {}]", of, count, least, kMaxThreads));
  };
  if (settings.num_threads < 0 || settings.num_threads > kMaxThreads) return bad("", settings.num_threads, 0);
  if (device.num_threads > kMaxThreads) return bad("device.", device.num_threads, 1);
  return {};
}

Result<Plan> make_plan(Problem&& problem, const Device& device, const PlanSettings& settings, const Assumed* assumed) {
  if (Status s = sanity(problem); !s.ok()) return s;
  if (Status s = threads_within_bounds(device, settings); !s.ok()) return s;
  plan_detail::Selection selection = plan_detail::select(problem, device, settings.kernel);
  if (selection.row == nullptr) return no_kernel(device, settings, selection);

  Plan plan;
  plan.problem = std::move(problem);
  plan.device = device;
  plan.kernel = *selection.row;
  plan.refusals = std::move(selection.refusals);
  plan.batch_invariant = settings.batch_invariant;
  plan.exact_weights = settings.exact_weights;
  plan.num_threads = std::max(1, settings.num_threads > 0 ? settings.num_threads : device.num_threads);
  if (device.backend == Backend::cpu) {
    plan_detail::cut_work(plan);
    plan.scratch_bytes_per_thread = plan.kernel.row().cpu->scratch_bytes(plan);
    return plan;
  }
  plan.bounds = assumed != nullptr ? assumed->bounds : plan_detail::bounds_of(plan.problem);
  if (assumed != nullptr) plan.assumptions = assumed->text;
  plan_detail::count_traffic(plan);
  if (Status s = plan_detail::size_lists(plan); !s.ok()) return s;
  return plan;
}

/// The tighter of what the shapes allow and what the caller says, with a sentence on where it comes from.
std::int64_t assume(Assumed& assumed, const char* what, std::int64_t from_shapes, const std::string& shapes, std::int64_t said) {
  const bool tighter = said > 0 && said < from_shapes;
  assumed.text.push_back(tighter ? formatted("{} <= {} (PlanSettings)", what, said)
                                 : formatted("{} <= {} ({})", what, from_shapes, shapes));
  return tighter ? said : from_shapes;
}

/// Derives bounds of lengths that planning does not read from the shapes of a batch.
Assumed assume_bounds(const Batch& batch, const KVCache& cache, const PlanSettings& settings) {
  Assumed a;
  a.bounds.num_reqs = batch.seq_lens.shape[0];
  a.bounds.num_tokens = batch.query.shape[0];
  a.bounds.max_query_len = assume(a, "query_len", a.bounds.num_tokens, "num_tokens", settings.max_query_len);
  a.bounds.query_len_from_shapes = settings.max_query_len <= 0 || settings.max_query_len > a.bounds.num_tokens;
  const std::int64_t columns = batch.block_table.shape[1], size = page_size(cache);
  std::int64_t longest = columns * size;  // both factors are below 2^31
  std::string why = formatted("{} table columns x {} tokens per page", columns, size);
  if (batch.key.present()) {
    longest += a.bounds.max_query_len;
    why += " + query_len";
  }
  longest = std::min<std::int64_t>(longest, INT32_MAX);
  a.bounds.max_seq_len = assume(a, "seq_len", longest, why, settings.max_seq_len);
  a.bounds.seq_len_from_shapes = settings.max_seq_len <= 0 || settings.max_seq_len >= longest;
  return a;
}

Result<Plan> plan_unread(const Batch& batch, const KVCache& cache, const Options& options, const PlanSettings& settings) {
  const device::Runtime& runtime = *device::runtime_of(batch.query.memory);
  const Result<int> ordinal = runtime.ordinal_of(batch.query_start_loc.data);  // rows and pages may be none
  if (!ordinal.ok()) return ordinal.status();
  const Result<Device> device = device::device_at(batch.query.memory, ordinal.value());
  if (!device.ok()) return device.status();
  const Assumed assumed = assume_bounds(batch, cache, settings);
  return make_plan(problem_of(batch, cache, options), device.value(), settings, &assumed);
}

}  // namespace

Result<Plan> plan(Problem problem, const Device& device, const PlanSettings& settings) try {
  return make_plan(std::move(problem), device, settings, nullptr);
} catch (...) {
  return batch::caught("plan");
}

Result<Plan> plan(const Batch& batch, const KVCache& cache, const Options& options, const PlanSettings& settings) try {
  const bool on_device = device::runtime_of(batch.query.memory) != nullptr;
  const Findings findings = check(batch, cache, options, on_device ? Depth::metadata : Depth::tables);
  if (!findings.ok()) return findings.status();
  if (on_device) return plan_unread(batch, cache, options, settings);
  return plan(problem_of(batch, cache, options), host_device(), settings);
} catch (...) {
  return batch::caught("plan");
}

std::size_t workspace_bytes(const Plan& plan) noexcept {
  if (plan.device.backend != Backend::cpu) return static_cast<std::size_t>(plan_detail::device_workspace(plan).bytes);
  return static_cast<std::size_t>(plan_detail::workspace_of(plan).floats) * sizeof(float);
}

namespace {

std::string traffic_text(const Plan& plan) {
  const bool read = plan.assumptions.empty();
  return read ? formatted("kv_bytes={} flops={:.4g}", plan.kv_bytes, plan.flops) : "kv_bytes=? flops=?";
}

std::string text_of_device_plan(const Plan& plan) {
  const Bounds& b = plan.bounds;
  std::string text = formatted("{} device={} reqs<={} tokens<={} query_len<={} seq_len<={}", plan.kernel.name(), plan.device.name,
                               b.num_reqs, b.num_tokens, b.max_query_len, b.max_seq_len);
  for (const plan_detail::DeviceList& list : plan.work().lists)
    text += formatted(" tile={}x{} split={} blocks={} slices<={} merges<={} partials<={}", list.tile_rows, list.tile_keys,
                      list.split_keys > 0 ? formatted("{}", list.split_keys) : "device", list.num_blocks, list.max_slices,
                      list.max_merges, list.max_partials);
  return text + formatted(" batch_invariant={} workspace={} {}", plan.batch_invariant ? "yes" : "no", workspace_bytes(plan),
                          traffic_text(plan));
}

}  // namespace

bool rounds_weights(const Plan& plan, std::int64_t query_len) noexcept {
  const std::int64_t rows = query_len * plan.problem.group();
  return std::any_of(plan.work().lists.begin(), plan.work().lists.end(), [&](const plan_detail::DeviceList& l) {
    return plan_detail::body_of(l).rounds_weights && rows > l.min_rows && rows <= l.max_rows;
  });
}

std::string to_string(const Plan& plan) {
  if (plan.device.backend != Backend::cpu) return text_of_device_plan(plan);
  return formatted(
      "{} device={} threads={} tile={}x{} split={} direct={} items={} merges={} partials={} batch_invariant={} workspace={} {}",
      plan.kernel.name(), plan.device.name, plan.num_threads, plan.tile_q * plan.problem.group(), plan.tile_kv, plan.split_keys,
      plan.direct_rows, plan.num_items(), plan.num_merges(), plan.num_partials, plan.batch_invariant ? "yes" : "no",
      workspace_bytes(plan), traffic_text(plan));
}

}  // namespace quire
