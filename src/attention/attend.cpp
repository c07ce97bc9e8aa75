// SPDX-License-Identifier: Apache-2.0
// Stage: attention. attend() and attend_status() go to the backend that the plan was made for.

#include "attention/beside.h"
#include "attention/dispatch.h"
#include "backend/cpu/entry.h"
#include "batch/caught.h"
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
              const AttendOptions& attend_options) try {
  if (!has_backend(plan.device.backend))
    return {Code::unsupported, formatted("attend: the plan was made for device {}, but this build has no {} kernels",
                                         plan.device.name, name(plan.device.backend))};
  const gpu::Vendor* vendor = attention::vendor_of(batch.query.memory);
  if (vendor != attention::vendor_of(device::memory_of(plan.device.backend))) return other_memory(plan, batch);
  if (vendor != nullptr) return gpu::attend(*vendor, plan, batch, cache, options, workspace, attend_options);
  return cpu::attend(plan, batch, cache, options, workspace, attend_options);
} catch (...) {
  return batch::caught("attend");
}

Status prepare(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options, std::span<std::byte> workspace,
               const AttendOptions& attend_options) try {
  const gpu::Vendor* vendor = attention::vendor_of(batch.query.memory);
  if (!has_backend(plan.device.backend) || vendor != attention::vendor_of(device::memory_of(plan.device.backend)))
    return attend(plan, batch, cache, options, workspace, attend_options);  // attend() refuses and names the reason
  if (vendor != nullptr) return gpu::prepare(*vendor, plan, batch, cache, options, workspace, attend_options);
  return cpu::prepare(plan, batch, cache, options, workspace, attend_options);
} catch (...) {
  return batch::caught("prepare");
}

Status attention::attend_part(const gpu::Call& part, const AttendOptions& attend_options) {
  const auto& [plan, batch, cache, options, workspace] = part;
  if (vendor_of(batch.query.memory) != nullptr) return quire::attend(plan, batch, cache, options, workspace, attend_options);
  return cpu::attend(plan, batch, cache, options, workspace, attend_options, /*checked=*/true);
}

Status attention::attend_beside(const gpu::Call& longer, const gpu::Call& shorter, const AttendOptions& attend_options) {
  return gpu::attend_beside(*vendor_of(longer.batch.query.memory), longer, shorter, attend_options);
}

Status attend_status(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options,
                     std::span<std::byte> workspace, const AttendOptions& attend_options) {
  const gpu::Vendor* vendor = attention::vendor_of(device::memory_of(plan.device.backend));
  if (vendor == nullptr) return {};
  if (vendor != attention::vendor_of(batch.query.memory)) return other_memory(plan, batch);
  return gpu::attend_status(*vendor, plan, batch, cache, options, workspace, attend_options);
}

namespace {

/// Calls `visit` with each vendor in the build.
template <typename Visit>
void for_each_vendor(Visit&& visit) {
  for (const Memory memory : {Memory::cuda, Memory::hip})
    if (const gpu::Vendor* vendor = attention::vendor_of(memory)) visit(*vendor);
}

}  // namespace

std::uint64_t take_broken_ticket() noexcept {
  std::uint64_t ticket = 0;
  for_each_vendor([&](const gpu::Vendor& vendor) {
    if (ticket == 0) ticket = gpu::take_broken_ticket(vendor);
  });
  return ticket;
}

bool has_broken_ticket() noexcept {
  bool any = false;
  for_each_vendor([&](const gpu::Vendor& vendor) { any |= gpu::has_broken_ticket(vendor); });
  return any;
}

Status why_broken(const Plan& plan, const Batch& batch, const KVCache& cache, const Options& options) {
  return gpu::why_broken(plan, batch, cache, options);
}

Status synchronize() {
  Status status;
  for_each_vendor([&](const gpu::Vendor& vendor) {
    if (status.ok()) status = gpu::synchronize(vendor);
  });
  return status;
}

Result<bool> is_capturing(Memory memory, void* stream) {
  const gpu::Vendor* vendor = attention::vendor_of(memory);
  if (vendor == nullptr) return false;
  return vendor->is_capturing(stream);
}

}  // namespace quire
