// SPDX-License-Identifier: Apache-2.0
// plan_sparse() and attend_sparse(): the rules of the whole call, then one ordinary call for each part.
#include <numeric>
#include <utility>

#include "batch/caught.h"
#include "device/room.h"
#include "quire/sparse.hpp"
#include "semantics/ceil_div.h"
#include "sparse/views.h"
#include "text/formatted.h"
#include "text/names.h"

namespace quire {

std::string_view name(ListUnit unit) noexcept {
  static constexpr std::string_view kUnits[] = {"page", "slot"};
  return name_in(kUnits, unit, "invalid");
}

std::string_view name(ListOwner owner) noexcept {
  static constexpr std::string_view kOwners[] = {"request", "row"};
  return name_in(kOwners, owner, "invalid");
}

namespace {

using sparse::Part;

constexpr std::size_t kAlignment = 256;  // alignment of each part's workspace

std::size_t aligned(std::size_t bytes) { return semantics::round_up(bytes, kAlignment); }

/// The parts of a call that keeps the rules, and what they point into.
class Parts {
 public:
  Parts(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists, bool causal) {
    if (batch.query.memory == Memory::cpu) host_.emplace(batch, cache, lists);
    parts_ = sparse::parts_of(batch, cache, options, host_ ? host_->lists() : lists, causal);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  const std::vector<Part>& all() const { return parts_; }

 private:
  std::optional<sparse::HostLists> host_;
  std::vector<Part> parts_;
};

/// On a GPU, lengths and tables are not read.
Status keeps_rules(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists) {
  const Depth depth = batch.query.memory == Memory::cpu ? Depth::tables : Depth::metadata;
  return check_sparse(batch, cache, options, lists, depth).status();
}

/// The settings of each part: rows are requests of one row.
PlanSettings settings_of(const SparseSettings& settings, const KeyLists& lists) {
  PlanSettings own = settings.plan;
  if (lists.owner == ListOwner::row) own.max_query_len = 1;
  return own;
}

std::string reason_of(const KeyLists& lists, std::size_t parts) {
  const bool slots = lists.unit == ListUnit::slot, rows = lists.owner == ListOwner::row;
  const std::int64_t width = lists.ids.shape[lists.ids.rank - 1];
  return formatted("lists of up to {} {}s of each {}{}: {}{}{}", width, name(lists.unit), name(lists.owner),
                   lists.ids.rank == 3 ? " and KV head" : "",
                   slots ? "the cache is seen as pages of one token" : "the block table is the lists",
                   rows ? ", each row as a request" : "",
                   parts > 1 ? formatted(", and each of {} KV heads as a batch", parts) : "");
}

Result<Sparse> planned(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists,
                       const SparseSettings& settings) {
  if (Status s = keeps_rules(batch, cache, options, lists); !s.ok()) return s;
  Sparse made;
  made.memory = batch.query.memory;
  const PlanSettings own = settings_of(settings, lists);
  made.causal = made.memory != Memory::cpu && own.max_query_len == 1 && !settings.empty_lists;
  const Parts parts(batch, cache, options, lists, made.causal);
  for (const Part& part : parts.all()) {
    Result<Plan> of_part = plan(part.batch, part.cache, part.options, own);
    if (!of_part.ok()) return of_part.status();
    made.plans.push_back(std::move(of_part.value()));
  }
  made.reason = reason_of(lists, made.plans.size());
  return made;
}

/// Rules of the whole call, the plan's facts, and room for all parts.
Status fits(const Sparse& s, const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists,
            std::span<std::byte> workspace) {
  if (Status broken = keeps_rules(batch, cache, options, lists); !broken.ok()) return broken;
  const std::size_t parts = lists.ids.rank == 3 ? static_cast<std::size_t>(num_kv_heads(cache)) : 1;
  if (batch.query.memory != s.memory || parts != s.plans.size())
    return {Code::invalid_argument,
            formatted("attend_sparse: the plan is of {} batches in {} memory, the lists make {} in {} memory; plan again",
                      s.plans.size(), name(s.memory), parts, name(batch.query.memory))};
  if (Status room = device::room_fits("workspace", workspace, workspace_bytes(s)); !room.ok()) return room;
  return check_workspace(batch, cache, options, workspace).status();
}

/// call(plan, part, workspace of the part), part by part until one fails.
template <class Call>
Status for_each_part(const Sparse& s, const Parts& parts, std::span<std::byte> workspace, Call&& call) {
  std::size_t at = 0;
  for (std::size_t p = 0; p < s.plans.size(); ++p) {
    const std::size_t bytes = workspace_bytes(s.plans[p]);
    if (Status status = call(s.plans[p], parts.all()[p], workspace.subspan(at, bytes)); !status.ok()) return status;
    at += aligned(bytes);
  }
  return {};
}

Status prepare_parts(const Sparse& s, const Parts& parts, std::span<std::byte> workspace, const AttendOptions& how) {
  return for_each_part(s, parts, workspace, [&](const Plan& plan, const Part& part, std::span<std::byte> own) {
    return prepare(plan, part.batch, part.cache, part.options, own, how);
  });
}

/// call(plan, part, workspace, options) with the rows of all parts counted.
template <class Call>
Status counting_rows(const Sparse& s, const Parts& parts, std::span<std::byte> workspace, const AttendOptions& how, Call&& call) {
  std::vector<RowCount> counts;
  AttendOptions own = how;
  if (how.rows != nullptr) how.rows->clear(), own.rows = &counts;
  return for_each_part(s, parts, workspace, [&](const Plan& plan, const Part& part, std::span<std::byte> piece) {
    Status status = call(plan, part, piece, own);
    if (how.rows != nullptr) how.rows->insert(how.rows->end(), counts.begin(), counts.end());
    return status;
  });
}

Status attend_parts(const Sparse& s, const Parts& parts, std::span<std::byte> workspace, const AttendOptions& how) {
  // A CPU call writes nothing if any part is refused: a plan for lists of other lengths is.
  if (s.memory == Memory::cpu && s.plans.size() > 1)
    if (Status refused = prepare_parts(s, parts, workspace, how); !refused.ok()) return refused;
  return counting_rows(s, parts, workspace, how,
                       [](const Plan& plan, const Part& part, std::span<std::byte> own, const AttendOptions& o) {
                         return attend(plan, part.batch, part.cache, part.options, own, o);
                       });
}

/// Lists may be too long for memory.
template <class Call>
auto guarded(const char* what, Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    return batch::caught(what);
  }
}

}  // namespace

Result<Sparse> plan_sparse(const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists,
                           const SparseSettings& settings) {
  return guarded("plan_sparse", [&] { return planned(batch, cache, options, lists, settings); });
}

std::string to_string(const Sparse& s) {
  std::string text = s.reason + "\n";
  for (std::size_t p = 0; p < s.plans.size(); ++p) {
    text += formatted("batch {}   {}\n", p, to_string(s.plans[p]));
    for (const Refusal& refusal : s.plans[p].refusals)
      text += formatted("          {} refuses: {}\n", refusal.kernel, refusal.reason);
  }
  return text;
}

std::size_t workspace_bytes(const Sparse& s) noexcept {
  return std::accumulate(s.plans.begin(), s.plans.end(), std::size_t{0},
                         [](std::size_t sum, const Plan& plan) { return sum + aligned(workspace_bytes(plan)); });
}

Status prepare_sparse(const Sparse& s, const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists,
                      std::span<std::byte> workspace, const AttendOptions& attend_options) {
  return guarded("prepare_sparse", [&]() -> Status {
    if (Status misfit = fits(s, batch, cache, options, lists, workspace); !misfit.ok()) return misfit;
    return prepare_parts(s, Parts(batch, cache, options, lists, s.causal), workspace, attend_options);
  });
}

Status attend_sparse(const Sparse& s, const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists,
                     std::span<std::byte> workspace, const AttendOptions& attend_options) {
  return guarded("attend_sparse", [&]() -> Status {
    if (Status misfit = fits(s, batch, cache, options, lists, workspace); !misfit.ok()) return misfit;
    return attend_parts(s, Parts(batch, cache, options, lists, s.causal), workspace, attend_options);
  });
}

Status sparse_status(const Sparse& s, const Batch& batch, const KVCache& cache, const Options& options, const KeyLists& lists,
                     std::span<std::byte> workspace, const AttendOptions& attend_options) {
  if (s.memory == Memory::cpu) return {};
  return guarded("sparse_status", [&]() -> Status {
    if (Status misfit = fits(s, batch, cache, options, lists, workspace); !misfit.ok()) return misfit;
    const Parts parts(batch, cache, options, lists, s.causal);
    Status outcome = counting_rows(s, parts, workspace, attend_options,
                                   [](const Plan& plan, const Part& part, std::span<std::byte> own, const AttendOptions& o) {
                                     return attend_status(plan, part.batch, part.cache, part.options, own, o);
                                   });
    if (outcome.ok() || outcome.rule().empty()) return outcome;
    const Findings findings = check_sparse(batch, cache, options, lists);
    return findings.ok() ? outcome : findings.status();
  });
}

}  // namespace quire
