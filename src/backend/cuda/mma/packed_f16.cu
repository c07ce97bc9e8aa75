// SPDX-License-Identifier: Apache-2.0
// Instances: query f16, packed caches of the same type.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

template <int kDim>
using PackedLaunches = Launches<F16, kDim, 2, PackedSource>;
const Instance kPackedF16Dim64 = PackedLaunches<64>::kAll;
const Instance kPackedF16Dim128 = PackedLaunches<128>::kAll;
const Instance kPackedF16Dim256 = PackedLaunches<256>::kAll;

}  // namespace quire::cuda::mma
