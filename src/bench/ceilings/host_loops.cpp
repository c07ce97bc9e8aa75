// SPDX-License-Identifier: Apache-2.0
// Picks the ceiling loops for this machine. QUIRE_CPU narrows what kernels may use, so it narrows their ceilings too.
#include "bench/ceilings/loops.h"
#include "quire/plan.hpp"

namespace quire::bench_detail {

#if defined(__x86_64__)
const Loops& host_loops() {
  const std::uint32_t features = host_device().cpu_features;
  if ((features & kAvx512) != 0) return avx512_loops();
  if ((features & kAvx2) != 0) return avx2_loops();
  return generic_loops();
}

const Bf16Dot* host_bf16_dot() { return (host_device().cpu_features & kAvx512Bf16) != 0 ? &avx512_bf16_dot() : nullptr; }

const Bf16Dot* host_amx() { return (host_device().cpu_features & kAmxBf16) != 0 ? &amx_tiles() : nullptr; }
#else
const Loops& host_loops() { return generic_loops(); }
const Bf16Dot* host_bf16_dot() { return nullptr; }
const Bf16Dot* host_amx() { return nullptr; }
#endif

}  // namespace quire::bench_detail
