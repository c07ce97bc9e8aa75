// SPDX-License-Identifier: Apache-2.0
// The instances of decode/kernel.h for rows of dims (nhd and hnd): query type x head_dim x (cache of the same type, fp8) x rows
// of a warpgroup. Budget: 2 x 3 x 2 x 2 = 24 kernels.
#include "backend/cuda/sm90/decode/fp8_tiles.h"
#include "backend/cuda/sm90/decode/plain_tiles.h"
#include "backend/cuda/sm90/decode/setup.h"

namespace quire::cuda::sm90 {

cudaError_t launch_decode(const HopperArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream) {
  return decode::start_decode<decode::PlainTiles, decode::Fp8Tiles>({args, maps, blocks, stream});
}

}  // namespace quire::cuda::sm90
