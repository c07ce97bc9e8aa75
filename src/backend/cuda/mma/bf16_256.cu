// SPDX-License-Identifier: Apache-2.0
// Instance: query bf16, cache of the same type, head_dim 256.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

const Instance kBf16Dim256 = Launches<Bf16, 256, 2>::kAll;

}  // namespace quire::cuda::mma
