// The instances of decode.h: query type x head_dim. Budget: 2 x 2 = 4 kernels.
#include "backend/cuda/sm90/decode.h"

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/instance.h"

namespace quire::cuda::sm90 {
namespace {

template <typename T, int kDim>
cudaError_t start(const gpu::AttendArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream) {
  using Kernel = Decode<T, kDim>;
  return launch_dependent(attend_decode<T, kDim>, {blocks, Kernel::kThreads, sizeof(typename Kernel::Shared)}, stream, args,
                          maps);
}

}  // namespace

cudaError_t launch_decode(const gpu::AttendArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream) {
  const bool f16 = args.query.dtype == DType::f16;
  if (args.head_dim == 64)
    return f16 ? start<mma::F16, 64>(args, maps, blocks, stream) : start<mma::Bf16, 64>(args, maps, blocks, stream);
  if (args.head_dim == 128)
    return f16 ? start<mma::F16, 128>(args, maps, blocks, stream) : start<mma::Bf16, 128>(args, maps, blocks, stream);
  return cudaErrorInvalidValue;
}

}  // namespace quire::cuda::sm90
