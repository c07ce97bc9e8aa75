// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: bytes to a sound batch with a wrong output, which is diagnosed and reduced (reduce_law.h).
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "reduce_law.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::int64_t reduced = 0;
  const std::string broken = quire::fuzz::broken_reduce_law(std::span(data, size), reduced);
  if (!broken.empty()) {
    std::fprintf(stderr, "%s\n", broken.c_str());
    std::abort();
  }
  return 0;
}
