// How the instances of prefill.h are launched: prefill.cu has those for 16-bit caches, prefill_codes.cu those for fp8 ones.
#pragma once

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/prefill.h"

namespace quire::cuda::sm90 {

template <typename T, int kDim, bool kCodes>
cudaError_t start_prefill(const gpu::AttendArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  using Memory = PrefillMemory<kDim, kCodes>;
  return launch_dependent(attend_prefill<T, kDim, kCodes>, {blocks, Memory::kThreads, sizeof(typename Memory::Shared), kPair},
                          stream, args, maps);
}

template <typename T, bool kCodes>
cudaError_t start_prefill(const gpu::AttendArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  switch (args.head_dim) {
    case 64: return start_prefill<T, 64, kCodes>(args, maps, blocks, stream);
    case 128: return start_prefill<T, 128, kCodes>(args, maps, blocks, stream);
    case 256: return start_prefill<T, 256, kCodes>(args, maps, blocks, stream);
    default: return cudaErrorInvalidValue;
  }
}

template <bool kCodes>
cudaError_t start_prefill(const gpu::AttendArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  return args.query.dtype == DType::f16 ? start_prefill<mma::F16, kCodes>(args, maps, blocks, stream)
                                        : start_prefill<mma::Bf16, kCodes>(args, maps, blocks, stream);
}

}  // namespace quire::cuda::sm90
