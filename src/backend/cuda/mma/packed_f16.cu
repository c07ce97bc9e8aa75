// SPDX-License-Identifier: Apache-2.0
// Instances: query f16, packed caches of the same type.
#include "backend/cuda/mma/define_instance.h"

namespace quire::cuda::mma {

template <int kDim>
using PackedLaunches = Launches<F16, kDim, 2, PackedSource>;
const Instance kPackedF16Dim64 = {PackedLaunches<64>::attend_short, PackedLaunches<64>::attend_tall};
const Instance kPackedF16Dim128 = {PackedLaunches<128>::attend_short, PackedLaunches<128>::attend_tall};
const Instance kPackedF16Dim256 = {PackedLaunches<256>::attend_short, PackedLaunches<256>::attend_tall};

}  // namespace quire::cuda::mma
