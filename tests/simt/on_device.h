// SPDX-License-Identifier: Apache-2.0
// The stand-in as a kernel under test of tests/kernels.
#pragma once

#include "kernels/judge.h"
#include "simt/device.h"

namespace quire::test {

/// `num_threads`, by which judge() varies who does the work, chooses blocks, their waves' order and the threads'.
inline simt::Device varied(simt::Device device, int num_threads) {
  device.blocks = num_threads > 1 ? 4 : 2;
  device.seed = static_cast<std::uint64_t>(num_threads - 1);
  return device;
}

inline Attend on_device(const simt::Device& device) {
  return [device](const Case& c, int num_threads, std::int64_t& rows) -> Status {
    return simt::attend(varied(device, num_threads), c, rows);
  };
}

}  // namespace quire::test
