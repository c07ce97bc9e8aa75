// SPDX-License-Identifier: Apache-2.0
// The instances of prefill/kernel.h for packed fp8 caches, e4m3fn and e5m2: query type x head_dim. Budget: 2 x 3 = 6 kernels.
#include "backend/cuda/sm90/prefill/setup.h"

namespace quire::cuda::sm90 {

cudaError_t launch_prefill_packed_codes(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  return prefill::start_prefill<prefill::CacheKind::packed_codes>(args, maps, blocks, stream);
}

}  // namespace quire::cuda::sm90
