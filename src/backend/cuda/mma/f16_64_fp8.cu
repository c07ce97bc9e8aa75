// SPDX-License-Identifier: Apache-2.0
// Instance: query f16, cache fp8_e4m3fn or fp8_e5m2, head_dim 64.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

const Instance kF16Dim64Fp8 = Launches<F16, 64, 1>::kAll;

}  // namespace quire::cuda::mma
