// SPDX-License-Identifier: Apache-2.0
// The instances of prefill/kernel.h for masks of every kind over 16-bit caches: query type x head_dims. Budget: 2 x 5 = 10
// kernels.
#include "backend/cuda/sm90/prefill/setup.h"

namespace quire::cuda::sm90 {
namespace prefill {
namespace {

template <int kDim, int kValueDim = kDim>
using Masked = Memory<kDim, CacheKind::rows, kValueDim, /*kMasks=*/true>;

template <typename T>
cudaError_t start_masked(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  switch (args.common.head_dim) {
    case 64: return start_prefill<T, Masked<64>>(args, maps, blocks, stream);
    case 128: return start_prefill<T, Masked<128>>(args, maps, blocks, stream);
    case 192: return start_prefill<T, Masked<192, 128>>(args, maps, blocks, stream);
    case 256: return start_prefill<T, Masked<256>>(args, maps, blocks, stream);
    case 512: return start_prefill<T, Masked<512>>(args, maps, blocks, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace
}  // namespace prefill

cudaError_t launch_prefill_masked(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  return prefill::with_query_type(args, [&]<typename T>(T) { return prefill::start_masked<T>(args, maps, blocks, stream); });
}

}  // namespace quire::cuda::sm90
