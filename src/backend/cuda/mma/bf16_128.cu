// SPDX-License-Identifier: Apache-2.0
// Instance: query bf16, cache of the same type, head_dim 128.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

const Instance kBf16Dim128 = Launches<Bf16, 128, 2>::kAll;

}  // namespace quire::cuda::mma
