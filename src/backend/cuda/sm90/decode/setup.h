// SPDX-License-Identifier: Apache-2.0
// Launches of the instances of decode/kernel.h: instances.cu has the kernels for rows of dims, instances_packed.cu those for
// packed caches.
#pragma once

#include "backend/cuda/dependent_launch.h"
#include "backend/cuda/sm90/decode/kernel.h"
#include "backend/cuda/sm90/instance.h"
#include "plan/kernels/cuda_sm90.h"

namespace quire::cuda::sm90::decode {

/// One launch.
struct DecodeLaunch {
  const HopperArgs& args;
  const CacheMaps& maps;
  int blocks;
  cudaStream_t stream;
};

/// Stages of narrow tiles: a few bytes more in a block's shared memory would cost a stage.
constexpr int narrow_stages(int head_dim, int element_bytes) {
  if (element_bytes == 1) return head_dim == 64 ? 5 : head_dim == 128 ? 2 : 6;
  return head_dim == 64 ? 6 : 3;
}

template <typename T, typename Tiles, int kRows>
cudaError_t start_rows(const DecodeLaunch& launch) {
  using Block = Memory<Tiles, kRows>;
  static_assert(plan_detail::kSm90.decode_blocks(Tiles::kDim, Tiles::kElementBytes, kRows, Tiles::kHeads) == Block::kBlocks);
  static_assert(Block::kSlices || Block::kStages == narrow_stages(Tiles::kHeads * Tiles::kDim, Tiles::kElementBytes));
  return launch_dependent(attend_decode<T, Block>, {launch.blocks, Block::kThreads, sizeof(typename Block::Shared)},
                          launch.stream, launch.args, launch.maps);
}

template <typename T, typename Tiles>
cudaError_t start_tiles(const DecodeLaunch& launch) {
  constexpr int kWideRows = static_cast<int>(plan_detail::kSm90.wide_rows(Tiles::kDim));
  static_assert(Memory<Tiles, kWideRows>::kGroups == plan_detail::kSm90.wide_groups);
  const int rows = launch.args.common.work.tile_rows;
  if (rows == 8) return start_rows<T, Tiles, 8>(launch);
  if (rows == kWideRows || rows == kWideRows * plan_detail::kSm90.wide_groups) return start_rows<T, Tiles, kWideRows>(launch);
  return cudaErrorInvalidValue;
}

template <template <typename, int> class Tiles, typename T>
cudaError_t start_type(const DecodeLaunch& launch) {
  if (launch.args.common.head_dim == 64) return start_tiles<T, Tiles<T, 64>>(launch);
  if (launch.args.common.head_dim == 128) return start_tiles<T, Tiles<T, 128>>(launch);
  if (launch.args.common.head_dim == 256) return start_tiles<T, Tiles<T, 256>>(launch);
  return cudaErrorInvalidValue;
}

template <template <typename, int> class Tiles>
cudaError_t start_cache(const DecodeLaunch& launch) {
  return launch.args.common.query.dtype == DType::bf16 ? start_type<Tiles, tile::Bf16>(launch)
                                                       : start_type<Tiles, tile::F16>(launch);
}

/// `Tiles` of 16-bit caches, `Codes` of fp8 ones. 8-bit queries become f16.
template <template <typename, int> class Tiles, template <typename, int> class Codes>
cudaError_t start_decode(const DecodeLaunch& launch) {
  return is_fp8(launch.args.common.cache_k.dtype) ? start_cache<Codes>(launch) : start_cache<Tiles>(launch);
}

}  // namespace quire::cuda::sm90::decode
