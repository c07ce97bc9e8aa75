// SPDX-License-Identifier: Apache-2.0
// The instances of decode/kernel.h for two KV heads a tile: query type x rows of both heads. Budget: 2 x 2 = 4 kernels.
#include "backend/cuda/sm90/decode/head_pair_tiles.h"
#include "backend/cuda/sm90/decode/setup.h"

namespace quire::cuda::sm90 {
namespace decode {
namespace {

template <typename T>
cudaError_t start_head_pairs(const DecodeLaunch& launch) {
  constexpr int kRows = static_cast<int>(plan_detail::kSm90.narrow_rows);
  if (launch.args.common.work.tile_rows == kRows) return start_rows<T, HeadPairTiles<T>, kRows>(launch);
  return start_rows<T, HeadPairTiles<T>, 2 * kRows>(launch);
}

}  // namespace
}  // namespace decode

cudaError_t launch_decode_head_pairs(const HopperArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream) {
  HopperArgs pairs = args;
  pairs.common.num_kv_heads /= 2;
  pairs.common.group *= 2;
  const decode::DecodeLaunch launch{pairs, maps, blocks, stream};
  return args.common.query.dtype == DType::bf16 ? decode::start_head_pairs<tile::Bf16>(launch)
                                                : decode::start_head_pairs<tile::F16>(launch);
}

}  // namespace quire::cuda::sm90
