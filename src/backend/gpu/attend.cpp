// SPDX-License-Identifier: Apache-2.0
// attend(): check the metadata, resolve pointers, enqueue what the vendor launches.
// attend_status(): what the device found and wrote.

#include <array>

#include "backend/gpu/current_device.h"
#include "backend/gpu/entry.h"
#include "backend/gpu/permit.h"
#include "backend/gpu/resolve.h"
#include "backend/gpu/tickets.h"
#include "plan/beside.h"
#include "plan/device_workspace.h"
#include "plan/fits.h"
#include "text/formatted.h"

namespace quire::gpu {

static_assert(kTicketNotPrepared == kNotPrepared);

Status admit(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options) {
  if (const Findings findings = check(batch, cache, options, Depth::metadata); !findings.ok()) return findings.status();
  if (Status s = plan_detail::shapes_fit(plan, batch, cache, options); !s.ok()) return s;
  if (Status s = plan_detail::counts_within(plan, batch); !s.ok()) return s;
  if (!vendor.has_kernel(plan.kernel))
    return {Code::unsupported, formatted("attend: kernel {} of the plan is not in this build", plan.kernel.name())};
  if (plan.device.ordinal < 0)
    return {Code::unsupported,
            formatted("attend: the plan was made for the pretended device {}; plan for gpu_device()", plan.device.name)};
  return {};
}

namespace {

Status admit_with_workspace(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache,
                            const Options& options, std::span<std::byte> workspace) {
  if (Status s = admit(vendor, plan, batch, cache, options); !s.ok()) return s;
  return plan_detail::workspace_fits(plan, batch, cache, options, workspace);
}

/// Host word that receives the ticket if the call breaks.
struct Teller {
  unsigned long long* word = nullptr;
  std::uint64_t ticket = 0;
};

Result<Teller> teller_of(const Vendor& vendor, const Plan& plan, const AttendOptions& how) {
  if (how.ticket == 0) return Teller{};
  const Result<unsigned long long*> word = vendor.tickets->word(vendor, plan.device.ordinal);
  if (!word.ok()) return word.status();
  return Teller{word.value(), how.ticket};
}

/// A call with its pointers resolved.
class Resolved {
 public:
  Resolved(const Call& call, Part part, const AttendOptions& how, const Teller& teller) : plan_(call.plan) {
    const std::size_t count = plan_.work().lists.size();
    for (std::size_t i = 0; i < count; ++i) {
      args_[i] = attend_args(plan_, call.batch, call.cache, call.options, call.workspace.data(), i);
      args_[i].nan_if_refused = how.nan_if_refused;
      args_[i].ticket_word = teller.word;
      args_[i].ticket = teller.ticket;
      args_[i].prepared = part == Part::layer;
    }
    const std::span<GenericArgs> lists(args_.data(), count);
    const unsigned long long permit = permit_of(lists);
    for (GenericArgs& list : lists) list.permit = permit;
    const auto words = static_cast<std::int32_t>(plan_detail::device_workspace(plan_).reset_bytes / 4);
    reset_ = {reinterpret_cast<CallState*>(call.workspace.data()), words, part == Part::call ? 1 : 0, permit};
  }
  EnqueuedCall enqueued() const { return {plan_, {args_.data(), plan_.work().lists.size()}, reset_}; }

 private:
  const Plan& plan_;
  std::array<GenericArgs, plan_detail::kMaxLists> args_;
  ResetArgs reset_;
};

/// The last call has been asked about; of those before, `left` is still to be told.
Status take_note(const Vendor& vendor, Unheard left, std::byte* workspace, void* stream) {
  left.heard = 1;
  left.seal = left.own_seal();
  return vendor.put(workspace + kUnheardAt, &left, sizeof left, stream);
}

std::string calls(std::int32_t n) { return n == 1 ? "1 call" : formatted("{} calls", n); }

/// Status of calls before the last. The values of their tables are gone, so that the broken rule cannot be named.
Status judge_earlier(const Unheard& unheard) {
  if (!unheard.is_sealed()) return {};
  if (unheard.refused != 0)
    return {
        Code::contract_violation,
        formatted(
            "attend: {} with this workspace before the last one wrote no row, and nobody had asked: lengths or tables broke a "
            "rule or exceeded the plan then, which check() could have named; call attend_status() after every call or replay, "
            "or set nan_if_refused",
            calls(unheard.refused))};
  if (unheard.miscounted != 0)
    return {Code::internal_error,
            formatted("attend: {} with this workspace before the last one wrote rows more or less than once, and "
                      "nobody had asked",
                      calls(unheard.miscounted))};
  return {};
}

/// Status of the last call. If the device found it broken, the host applies the rules again to name the broken one.
Status explain(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, const Outcome& outcome) {
  if (outcome.broken != 0)
    if (Status s = gpu::why_broken(plan, batch, cache, options); !s.ok()) return s;
  return judge(outcome, plan, batch);
}

}  // namespace

Status attend(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
              std::span<std::byte> workspace, const AttendOptions& attend_options) {
  if (Status s = admit_with_workspace(vendor, plan, batch, cache, options, workspace); !s.ok()) return s;
  return enqueue_admitted(vendor, plan, batch, cache, options, workspace, part_of(attend_options), attend_options);
}

Status attend_beside(const Vendor& vendor, const Call& longer, const Call& shorter, const AttendOptions& attend_options) {
  if (vendor.enqueue_beside == nullptr || !plan_detail::is_beside(longer.plan)) {
    for (const Call* c : {&longer, &shorter})
      if (Status s = attend(vendor, c->plan, c->batch, c->cache, c->options, c->workspace, attend_options); !s.ok()) return s;
    return {};
  }
  for (const Call* c : {&longer, &shorter})
    if (Status s = admit_with_workspace(vendor, c->plan, c->batch, c->cache, c->options, c->workspace); !s.ok()) return s;
  const CurrentDevice current(vendor, longer.plan.device.ordinal);
  if (!current.status().ok()) return current.status();
  const Result<Teller> teller = teller_of(vendor, longer.plan, attend_options);
  if (!teller.ok()) return teller.status();
  const Part part = part_of(attend_options);
  const Resolved first(longer, part, attend_options, teller.value()), second(shorter, part, attend_options, teller.value());
  return vendor.enqueue_beside(first.enqueued(), second.enqueued(), part, attend_options.stream);
}

Status prepare(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
               std::span<std::byte> workspace, const AttendOptions& attend_options) {
  if (Status s = admit_with_workspace(vendor, plan, batch, cache, options, workspace); !s.ok()) return s;
  return enqueue_admitted(vendor, plan, batch, cache, options, workspace, Part::preparation, attend_options);
}

Status enqueue_admitted(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                        std::span<std::byte> workspace, Part part, const AttendOptions& attend_options) {
  const CurrentDevice current(vendor, plan.device.ordinal);
  if (!current.status().ok()) return current.status();
  const Result<Teller> teller = teller_of(vendor, plan, attend_options);
  if (!teller.ok()) return teller.status();
  const Resolved resolved({plan, batch, cache, options, workspace}, part, attend_options, teller.value());
  return vendor.enqueue_attend(resolved.enqueued(), part, attend_options.stream);
}

Status why_broken(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options) {
  if (const Findings findings = check(batch, cache, options, Depth::tables); !findings.ok()) return findings.status();
  return plan_detail::lengths_within(plan, batch);
}

Status attend_status(const Vendor& vendor, const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                     std::span<std::byte> workspace, const AttendOptions& attend_options) {
  if (Status s = admit_with_workspace(vendor, plan, batch, cache, options, workspace); !s.ok()) return s;
  const CurrentDevice current(vendor, plan.device.ordinal);
  if (!current.status().ok()) return current.status();
  const Result<bool> capturing = vendor.is_capturing(attend_options.stream);
  if (!capturing.ok()) return capturing.status();
  if (capturing.value())
    return {Code::invalid_argument,
            "attend_status: stream is being captured in a graph, where nothing may wait; ask after a replay"};
  CallState state;
  if (Status s = vendor.fetch(&state, workspace.data(), sizeof state, attend_options.stream); !s.ok())
    return {s.code(), "attend_status: " + s.message()};
  const Outcome& outcome = state.outcome;
  Status last = explain(plan, batch, cache, options, outcome);
  Status earlier = judge_earlier(state.unheard);
  // A failure of the last call hides failures of earlier calls: these are kept for the next attend_status().
  const Unheard left = last.ok() || earlier.ok() ? Unheard{} : state.unheard;
  if (Status s = take_note(vendor, left, workspace.data(), attend_options.stream); !s.ok() && last.ok() && earlier.ok())
    return {s.code(), "attend_status: " + s.message()};
  if (!last.ok()) return last;
  if (!earlier.ok()) return earlier;
  if (attend_options.rows != nullptr)
    *attend_options.rows = {{std::string(plan.kernel), static_cast<std::int64_t>(outcome.rows_written)}};
  return {};
}

}  // namespace quire::gpu
