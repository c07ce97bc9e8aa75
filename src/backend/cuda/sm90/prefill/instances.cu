// SPDX-License-Identifier: Apache-2.0
// The instances of prefill/kernel.h for 16-bit caches: query type x head_dim. Budget: 2 x 3 = 6 kernels, and 2 for tall tiles at
// head_dim 64.
#include "backend/cuda/sm90/prefill/setup.h"

namespace quire::cuda::sm90 {

cudaError_t launch_prefill(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  return prefill::start_prefill<prefill::CacheKind::rows>(args, maps, blocks, stream);
}

}  // namespace quire::cuda::sm90
