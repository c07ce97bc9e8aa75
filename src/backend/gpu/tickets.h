// SPDX-License-Identifier: Apache-2.0
// Tickets of broken calls that nobody waits for: one word in host memory, which devices write and the host reads at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "backend/gpu/entry.h"

namespace quire::gpu {

class Tickets {
 public:
  /// The word, made at the first call; `ordinal` is a device that will write it.
  Result<unsigned long long*> word(const Vendor& vendor, int ordinal);
  /// Returns the ticket in the word and sets the word to 0; 0 if the word was never made.
  std::uint64_t take() noexcept;
  bool any() const noexcept;
  /// Waits for the devices that were named to word().
  Status synchronize(const Vendor& vendor);

 private:
  static constexpr int kMostDevices = 64;  // bits of devices_; synchronize() skips devices beyond
  std::mutex making_;
  std::atomic<unsigned long long*> word_{nullptr};
  std::atomic<std::uint64_t> devices_{0};
};

}  // namespace quire::gpu
