// SPDX-License-Identifier: Apache-2.0
// Instantiates the ceiling loops for what every machine of this architecture has.
#include "bench/ceilings/loops_body.h"

namespace quire::bench_detail {

const Loops& generic_loops() {
  static constexpr Loops kLoops = loops_of<16>("generic");
  return kLoops;
}

}  // namespace quire::bench_detail
