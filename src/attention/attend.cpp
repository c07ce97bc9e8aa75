// Stage: attention. attend() and attend_status() go to the backend that the plan was made for.

#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "quire/attention.hpp"
#include "text/formatted.h"

namespace quire {
namespace {

Status other_memory(const Plan& plan, const Batch& batch) {
  return {Code::invalid_argument, formatted("attend: the plan was made for the {} device {}, but query is in {} memory",
                                            name(plan.device.backend), plan.device.name, name(batch.query.memory))};
}

}  // namespace

Status attend(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
              const AttendOptions& attend_options) {
  if (!has_backend(plan.device.backend))
    return {Code::unsupported, formatted("attend: the plan was made for device {}, but this build has no {} kernels",
                                         plan.device.name, name(plan.device.backend))};
  const gpu::Vendor* vendor = attention::vendor_of(batch.query.memory);
  if (vendor != attention::vendor_of(device::memory_of(plan.device.backend))) return other_memory(plan, batch);
  if (vendor != nullptr) return gpu::attend(*vendor, plan, batch, cache, options, workspace, attend_options);
  return cpu::attend(plan, batch, cache, options, workspace, attend_options);
}

Status attend_status(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                     std::span<std::byte> workspace, const AttendOptions& attend_options) {
  const gpu::Vendor* vendor = attention::vendor_of(device::memory_of(plan.device.backend));
  if (vendor == nullptr) return {};
  if (vendor != attention::vendor_of(batch.query.memory)) return other_memory(plan, batch);
  return gpu::attend_status(*vendor, plan, batch, cache, options, workspace, attend_options);
}

}  // namespace quire
