// SPDX-License-Identifier: Apache-2.0
// The Hopper kernels as host code sees them.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <numeric>

#include "backend/cuda/turn.h"
#include "backend/gpu/args.h"
#include "schedule/shares.h"

namespace quire::cuda::sm90 {

using Byte = unsigned char;

constexpr int kTileKeys = schedule::kShareTileKeys;
constexpr int kPackedKeys = 8;     ///< tokens of a core matrix of packed keys
constexpr int kPackedValues = 16;  ///< tokens of a row of packed values, at least
constexpr int kFewRequests = 64;   ///< most requests whose iterations one warp counts
constexpr int kWorkEntries = 960;  ///< first iterations of requests that a block keeps in shared memory

// Constants of prefill/.
constexpr int kPair = 2;           ///< blocks that share tiles of keys
constexpr int kMostOutDims = 256;  ///< dims of the output that registers of a block hold; a pair holds twice as many
/// Tokens that a box holds at most: whole boxes fill a tile. Boxes of this step's rows hold as many.
constexpr int most_box_tokens(int tile_keys) { return std::gcd(tile_keys, 64); }

/// Arguments of a Hopper kernel: those of every GPU kernel, and those that no other kernel asks.
struct HopperArgs {
  gpu::AttendArgs common;
  Turn turn = Turn::alone;
  bool plain_lengths = false;  ///< query_start_loc, seq_lens and cached_lens, if present, are i32 with stride 1
  bool plain_table = false;    ///< entries of a row of the block table are i32 with stride 1
};

/// Boxes of the two caches: 64 dims of 16 bits or up to 128 of 8, x box_tokens tokens of one head and page, swizzled by their
/// width; of packed caches all dims, as packed_layout.h has them.
struct CacheMaps {
  CUtensorMap k, v;
  std::int32_t box_tokens = 0;  ///< the greatest common divisor of page_size and most_box_tokens()
  std::int32_t box_shift = 0;   ///< log2 of box_tokens
  std::int32_t page_boxes = 1;  ///< boxes of a page, one after the other
};

/// Tensors that prefill reads and writes by tensor copies: boxes of the query hold all heads of a group.
struct PrefillMaps {
  CacheMaps cache;
  CUtensorMap query, key, value;
  bool output_chunks = false;  ///< rows of the output can be written 16 bytes at a time
  bool output_boxes = false;   ///< 16 score rows of whole groups, or of one, are a box of `output`
  CUtensorMap output;
};

/// decode/instances.cu: the requests of args.common.work's rows, by `blocks` blocks.
cudaError_t launch_decode(const HopperArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream);
/// decode/instances_packed.cu: the same for packed caches.
cudaError_t launch_decode_packed(const HopperArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream);
/// decode/instances_head_pairs.cu: the same at head_dim 64 with two KV heads a tile (decode/head_pair_tiles.h). The arguments are
/// those of single heads.
cudaError_t launch_decode_head_pairs(const HopperArgs& args, const CacheMaps& maps, int blocks, cudaStream_t stream);
/// cluster/instances.cu: requests of one row, each segment by a cluster of `blocks` blocks.
cudaError_t launch_cluster(const gpu::AttendArgs& args, int blocks, cudaStream_t stream);
/// prefill/instances.cu and, for fp8 caches, prefill/instances_fp8.cu: the items of args.common.work, by pairs of `blocks`
/// blocks.
cudaError_t launch_prefill(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream);
cudaError_t launch_prefill_codes(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream);
/// prefill/instances_packed.cu and prefill/instances_packed_fp8.cu: the same for packed caches.
cudaError_t launch_prefill_packed(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream);
cudaError_t launch_prefill_packed_codes(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream);
/// prefill/instances_wide.cu: the same for 16-bit caches of rows with other head_dims (kSm90.has_wide_dims()).
cudaError_t launch_prefill_wide(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream);
/// prefill/instances_masked.cu: launch_prefill() and launch_prefill_wide() with masks of every kind (decision 35).
cudaError_t launch_prefill_masked(const HopperArgs& args, const PrefillMaps& maps, int blocks, cudaStream_t stream);

}  // namespace quire::cuda::sm90
