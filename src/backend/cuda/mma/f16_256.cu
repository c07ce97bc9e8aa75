// SPDX-License-Identifier: Apache-2.0
// Instance: query f16, cache of the same type, head_dim 256.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

const Instance kF16Dim256 = Launches<F16, 256, 2>::kAll;

}  // namespace quire::cuda::mma
