// SPDX-License-Identifier: Apache-2.0
// Instance: query f16, cache of the same type, head_dim 64.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

const Instance kF16Dim64 = Launches<F16, 64, 2>::kAll;

}  // namespace quire::cuda::mma
