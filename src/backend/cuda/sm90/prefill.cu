// The instances of prefill.h: query type x head_dim. Budget: 2 x 3 = 6 kernels.
#include "backend/cuda/sm90/prefill.h"

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/instance.h"

namespace quire::cuda::sm90 {
namespace {

template <typename T, int kDim>
cudaError_t start(const gpu::AttendArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  using Memory = PrefillMemory<kDim>;
  return launch_dependent(attend_prefill<T, kDim>, {blocks, Memory::kThreads, sizeof(typename Memory::Shared), kPair}, stream,
                          args, maps);
}

template <typename T>
cudaError_t start(const gpu::AttendArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  switch (args.head_dim) {
    case 64: return start<T, 64>(args, maps, blocks, stream);
    case 128: return start<T, 128>(args, maps, blocks, stream);
    case 256: return start<T, 256>(args, maps, blocks, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t launch_prefill(const gpu::AttendArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream) {
  return args.query.dtype == DType::f16 ? start<mma::F16>(args, maps, blocks, stream)
                                        : start<mma::Bf16>(args, maps, blocks, stream);
}

}  // namespace quire::cuda::sm90
