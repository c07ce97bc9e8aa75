// SPDX-License-Identifier: Apache-2.0
// See tickets.h.
#include "backend/gpu/tickets.h"

#include "backend/gpu/current_device.h"

namespace quire::gpu {

Result<unsigned long long*> Tickets::word(const Vendor& vendor, int ordinal) {
  if (ordinal >= 0 && ordinal < kMostDevices) devices_.fetch_or(std::uint64_t{1} << ordinal, std::memory_order_relaxed);
  if (auto* made = word_.load(std::memory_order_acquire)) return made;
  const std::lock_guard<std::mutex> locked(making_);
  if (auto* made = word_.load(std::memory_order_acquire)) return made;
  const Result<void*> memory = vendor.allocate_for_host(sizeof(unsigned long long));
  if (!memory.ok()) return memory.status();
  auto* made = static_cast<unsigned long long*>(memory.value());
  word_.store(made, std::memory_order_release);
  return made;
}

std::uint64_t Tickets::take() noexcept {
  if (!any()) return 0;
  // An exchange: what a device writes at this moment is found by the next look.
  return std::atomic_ref(*word_.load(std::memory_order_acquire)).exchange(0, std::memory_order_acq_rel);
}

bool Tickets::any() const noexcept {
  auto* word = word_.load(std::memory_order_acquire);
  return word != nullptr && std::atomic_ref(*word).load(std::memory_order_acquire) != 0;
}

Status Tickets::synchronize(const Vendor& vendor) {
  const std::uint64_t devices = devices_.load(std::memory_order_relaxed);
  for (int ordinal = 0; ordinal < kMostDevices; ++ordinal) {
    if ((devices >> ordinal & 1) == 0) continue;
    const CurrentDevice current(vendor, ordinal);
    if (!current.status().ok()) return current.status();
    if (Status s = vendor.runtime->synchronize(); !s.ok()) return s;
  }
  return {};
}

std::uint64_t take_broken_ticket(const Vendor& vendor) noexcept { return vendor.tickets->take(); }
bool has_broken_ticket(const Vendor& vendor) noexcept { return vendor.tickets->any(); }
Status synchronize(const Vendor& vendor) { return vendor.tickets->synchronize(vendor); }

}  // namespace quire::gpu
