// SPDX-License-Identifier: Apache-2.0
// Instances: query f16, packed fp8 caches.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

template <int kDim>
using PackedLaunches = Launches<F16, kDim, 1, PackedSource>;
const Instance kPackedF16Dim64Fp8 = PackedLaunches<64>::kAll;
const Instance kPackedF16Dim128Fp8 = PackedLaunches<128>::kAll;

}  // namespace quire::cuda::mma
