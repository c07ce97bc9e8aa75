// SPDX-License-Identifier: Apache-2.0
// Instantiates the ceiling loops for AVX2 + FMA.
#if defined(__x86_64__)

#include "bench/ceilings/loops_body.h"

namespace quire::bench_detail {

const Loops& avx2_loops() {
  static constexpr Loops kLoops = loops_of<32>("avx2");
  return kLoops;
}

}  // namespace quire::bench_detail

#endif
