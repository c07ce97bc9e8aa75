// SPDX-License-Identifier: Apache-2.0
// The instances of decode.h for packed caches: query type x head_dim x (cache of the same type, fp8) x rows of a warpgroup.
// Budget: 2 x 3 x 2 x 2 = 24 kernels.
#include "backend/cuda/sm90/decode_start.h"
#include "backend/cuda/sm90/packed_tiles.h"

namespace quire::cuda::sm90 {
namespace {

struct Family {
  template <typename T, int kDim>
  using Tiles = PackedTiles<T, kDim>;
  template <typename T, int kDim>
  using Codes = PackedFp8Tiles<T, kDim>;
};

}  // namespace

cudaError_t launch_decode_packed(const gpu::AttendArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream) {
  return start_decode<Family>({args, maps, blocks, stream});
}

}  // namespace quire::cuda::sm90
