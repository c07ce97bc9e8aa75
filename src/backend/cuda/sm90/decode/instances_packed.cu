// SPDX-License-Identifier: Apache-2.0
// The instances of decode/kernel.h for packed caches: query type x head_dim x (cache of the same type, fp8) x rows of a
// warpgroup. Budget: 2 x 3 x 2 x 2 = 24 kernels.
#include "backend/cuda/sm90/decode/packed_tiles.h"
#include "backend/cuda/sm90/decode/setup.h"

namespace quire::cuda::sm90 {

cudaError_t launch_decode_packed(const HopperArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream) {
  return decode::start_decode<decode::PackedTiles, decode::PackedFp8Tiles>({args, maps, blocks, stream});
}

}  // namespace quire::cuda::sm90
