// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: bytes to a batch, and the laws that hold for any batch (batch_laws.h).
#include <cstdio>
#include <cstdlib>

#include "batch_laws.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  quire::fuzz::Tally tally;
  const std::string broken = quire::fuzz::broken_law(std::span(data, size), tally);
  if (!broken.empty()) {
    std::fprintf(stderr, "%s\n", broken.c_str());
    std::abort();
  }
  return 0;
}
