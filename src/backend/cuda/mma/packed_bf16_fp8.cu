// SPDX-License-Identifier: Apache-2.0
// Instances: query bf16, packed fp8 caches.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

template <int kDim>
using PackedLaunches = Launches<Bf16, kDim, 1, PackedSource>;
const Instance kPackedBf16Dim64Fp8 = PackedLaunches<64>::kAll;
const Instance kPackedBf16Dim128Fp8 = PackedLaunches<128>::kAll;

}  // namespace quire::cuda::mma
