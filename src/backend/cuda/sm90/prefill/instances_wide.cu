// SPDX-License-Identifier: Apache-2.0
// The instances of prefill/kernel.h for 16-bit caches with head_dims beyond 256 or unlike for K and V: 192 with V of 128
// (prefill of MLA), and 512. Budget: 2 x 2 = 4 kernels.
#include "backend/cuda/sm90/prefill/setup.h"

namespace quire::cuda::sm90 {
namespace prefill {
namespace {

template <typename T>
cudaError_t start_wide(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  if (args.common.head_dim == 512) return start_prefill<T, Memory<512, CacheKind::rows>>(args, maps, blocks, stream);
  return start_prefill<T, Memory<192, CacheKind::rows, 128>>(args, maps, blocks, stream);
}

}  // namespace
}  // namespace prefill

cudaError_t launch_prefill_wide(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  return prefill::with_query_type(args, [&]<typename T>(T) { return prefill::start_wide<T>(args, maps, blocks, stream); });
}

}  // namespace quire::cuda::sm90
