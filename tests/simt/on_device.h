// The stand-in as a kernel under test of tests/kernels.
#pragma once

#include "kernels/judge.h"
#include "simt/device.h"

namespace quire::test {

/// `num_threads`, by which judge() varies who does the work, chooses blocks, their waves' order and the threads'.
inline Attend on_device(simt::Device device) {
  return [device](const Case& c, int num_threads, std::int64_t& rows) -> Status {
    simt::Device d = device;
    d.blocks = num_threads > 1 ? 4 : 2;
    d.seed = static_cast<std::uint64_t>(num_threads - 1);
    return simt::attend(d, c, rows);
  };
}

}  // namespace quire::test
