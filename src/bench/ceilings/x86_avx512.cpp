// SPDX-License-Identifier: Apache-2.0
// Instantiates the ceiling loops for AVX-512.
#if defined(__x86_64__)

#include "bench/ceilings/loops_body.h"

namespace quire::bench_detail {

const Loops& avx512_loops() {
  static constexpr Loops kLoops = loops_of<64>("avx512");
  return kLoops;
}

}  // namespace quire::bench_detail

#endif
