// SPDX-License-Identifier: Apache-2.0
// plan_cascade(): what is shared, and a plan for each level.
#include <algorithm>

#include "batch/caught.h"
#include "batch/fields.h"
#include "cascade/facts.h"
#include "cascade/levels.h"
#include "device/runtime.h"
#include "device/staging.h"
#include "plan/beside.h"
#include "quire/cascade.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

using cascade::HostTable;

Status refuse(const CascadeSettings& settings, const Batch& batch) {
  if (settings.find && !settings.runs.empty())
    return {Code::invalid_argument,
            formatted("settings: {} runs are named beside find = true, expected find = false", settings.runs.size())};
  const DType partials = settings.partials;
  if (partials != DType::none && partials != DType::f32 && partials != batch.query.dtype)
    return {Code::invalid_argument,
            formatted("settings.partials: {}, expected f32 or {} (as query)", name(partials), name(batch.query.dtype))};
  if (is_fp8(partials)) return {Code::invalid_argument, formatted("settings.partials: {}, expected f32", name(partials))};
  return {};
}

/// The batch with its lengths and tables in host memory.
Result<Batch> staged(Batch batch, device::Staging& staging) {
  Status status;
  const auto stage = [&](const batch::TensorField& f, Tensor& t) {
    if (status.ok() && f.of_step()) status = staging.stage(t);
  };
  batch::for_each_tensor(stage, batch::BatchPart{batch});
  if (!status.ok()) return status;
  return batch;
}

Result<Device> device_of(const Batch& batch) {
  const device::Runtime* runtime = device::runtime_of(batch.query.memory);
  if (runtime == nullptr) return host_device();
  const Result<int> ordinal = runtime->ordinal_of(batch.query_start_loc.data);  // rows may be none
  if (!ordinal.ok()) return ordinal.status();
  return device::device_at(batch.query.memory, ordinal.value());
}

Result<SharedPrefixes> shared_by(const Problem& problem, const HostTable& table, const Device& device,
                                 const CascadeSettings& settings) {
  SharedPrefixes shared;
  if (!settings.find) {
    const Findings findings = check_shared_runs(problem, table.pages, table.columns, settings.runs, &shared);
    if (!findings.ok()) return findings.status();
    return shared;
  }
  if (settings.plan.batch_invariant) {
    shared.pages.assign(problem.reqs.size(), 0);
    shared.reason = "nothing is shared: what is found depends on other requests, and batch_invariant bits may not; name the runs";
    return shared;
  }
  SharingCosts costs = sharing_costs(device);
  costs.always = settings.always;
  return find_shared_prefixes(problem, table.pages, table.columns, costs);
}

DType partials_of(const CascadeSettings& settings, const Batch& batch) {
  if (settings.partials != DType::none) return settings.partials;
  const bool narrow = batch.query.dtype == DType::f16 || batch.query.dtype == DType::bf16;
  return batch.query.memory != Memory::cpu && narrow ? batch.query.dtype : DType::f32;
}

/// Shared keys take products and own keys bytes, so the level of runs with most work is computed beside own keys if that saves
/// time.
void choose_beside(std::vector<CascadeLevel>& levels) {
  const auto most = std::max_element(levels.begin(), levels.end() - 1, [](const CascadeLevel& a, const CascadeLevel& b) {
    return a.plan.problem.visible_pairs() < b.plan.problem.visible_pairs();
  });
  most->beside = plan_detail::set_beside(most->plan, levels.back().plan);
}

Result<Cascade> planned(const Batch& batch, const KVCache& cache, const Options& options, const CascadeSettings& settings) {
  if (const Findings findings = check(batch, cache, options, Depth::tables); !findings.ok()) return findings.status();
  if (Status s = refuse(settings, batch); !s.ok()) return s;
  const Result<Device> device = device_of(batch);
  if (!device.ok()) return device.status();
  device::Staging staging;
  const Result<Batch> host = staged(batch, staging);
  if (!host.ok()) return host.status();
  Cascade made;
  made.problem = problem_of(host.value(), cache, options);
  made.memory = batch.query.memory;
  made.num_tokens = batch.query.shape[0];
  made.partials = partials_of(settings, batch);
  const HostTable table = cascade::table_of(host.value(), made.problem);
  made.digest = cascade::digest_of(made.problem, table);
  Result<SharedPrefixes> shared = shared_by(made.problem, table, device.value(), settings);
  if (!shared.ok()) return shared.status();
  made.shared = std::move(shared.value());
  if (!made.shared.shares()) {
    Result<Plan> plain = plan(made.problem, device.value(), settings.plan);
    if (!plain.ok()) return plain.status();
    made.plain = std::move(plain.value());
    return made;
  }
  made.levels = cascade::make_levels(made.problem, made.shared, table);
  const std::int64_t rows = cascade::merged_rows(made, batch);
  const Tensor out = Tensor::contiguous(nullptr, made.partials, rows, batch.output.shape[1], batch.output.shape[2]);
  const Tensor lse = Tensor::contiguous(nullptr, DType::f32, rows, batch.output.shape[1]);
  for (CascadeLevel& level : made.levels) {
    const Problem problem = problem_of(cascade::batch_of(level, batch, {}, out, lse), cache, cascade::options_of(level, options));
    Result<Plan> of_level = plan(problem, device.value(), settings.plan);
    if (!of_level.ok()) return of_level.status();
    level.plan = std::move(of_level.value());
  }
  choose_beside(made.levels);
  return made;
}

}  // namespace

Result<Cascade> plan_cascade(const Batch& batch, const KVCache& cache, const Options& options, const CascadeSettings& settings) {
  try {
    return planned(batch, cache, options, settings);
  } catch (...) {
    return batch::caught("plan_cascade");
  }
}

}  // namespace quire
