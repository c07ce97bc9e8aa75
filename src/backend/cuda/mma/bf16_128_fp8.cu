// SPDX-License-Identifier: Apache-2.0
// Instance: query bf16, cache fp8_e4m3fn or fp8_e5m2, head_dim 128.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

const Instance kBf16Dim128Fp8 = Launches<Bf16, 128, 1>::kAll;

}  // namespace quire::cuda::mma
