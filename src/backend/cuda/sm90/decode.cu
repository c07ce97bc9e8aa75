// The instances of decode.h: query type x head_dim x (cache of the same type, fp8). Budget: 2 x 2 x 2 = 8 kernels.
#include "backend/cuda/sm90/decode.h"

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/fp8_tiles.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/plain_tiles.h"

namespace quire::cuda::sm90 {
namespace {

/// How one call is launched.
struct Launch {
  const gpu::AttendArgs& args;
  const CacheMaps& maps;
  int blocks;
  cudaStream_t stream;
};

template <typename T, typename Tiles>
cudaError_t start(const Launch& launch) {
  using Kernel = Decode<T, Tiles>;
  return launch_dependent(attend_decode<T, Tiles>, {launch.blocks, Kernel::kThreads, sizeof(typename Kernel::Shared)},
                          launch.stream, launch.args, launch.maps);
}

template <typename T>
cudaError_t start(const Launch& launch) {
  const bool fp8 = is_fp8(launch.args.cache_k.dtype);
  if (launch.args.head_dim == 64) return fp8 ? start<T, Fp8Tiles<T, 64>>(launch) : start<T, PlainTiles<T, 64>>(launch);
  if (launch.args.head_dim == 128) return fp8 ? start<T, Fp8Tiles<T, 128>>(launch) : start<T, PlainTiles<T, 128>>(launch);
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_decode(const gpu::AttendArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream) {
  const Launch launch{args, maps, blocks, stream};
  return args.query.dtype == DType::f16 ? start<mma::F16>(launch) : start<mma::Bf16>(launch);
}

}  // namespace quire::cuda::sm90
