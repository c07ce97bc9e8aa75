// SPDX-License-Identifier: Apache-2.0
// The transform warps of prefill for fp8 caches: from codes to the tiles of 16-bit elements that wgmma reads.
//
// Keys become the type of the queries, as wgmma demands; values become f16, one instruction a pair (bf16 takes four). Both are
// exact. Each block converts all codes for itself. This step's 16-bit rows are copied to their tiles at once, by these warps.
#pragma once

#include <cuda_fp8.h>

#include "backend/cuda/sm90/packed_layout.h"
#include "backend/cuda/sm90/prefill/boxes.h"
#include "backend/cuda/sm90/prefill/job_queue.h"
#include "backend/cuda/tile/convert_fp8.h"

namespace quire::cuda::sm90::prefill {

/// T: type of the query.
template <typename T, typename Memory>
struct Transform {
  using Boxes = TileBoxes<Memory>;
  using Box = typename Boxes::Box;
  using Ring = typename Memory::Ring;
  using Job = typename Memory::Job;
  using Tile = typename Memory::Tile;
  using CodeTile = typename Memory::CodeTile;
  using CodeRing = typename Memory::CodeRing;
  static constexpr int kWarps = Memory::kTransformWarps, kBoxDims = Memory::kBoxDims, kBoxes = Memory::kBoxes;
  static constexpr int kDim = Memory::kDim, kKeys = Memory::kKeys, kRowBytes = Memory::kRowBytes;

  const Block<Memory> block;
  const JobQueue<Memory> queue{block};
  const Boxes boxes{block};

  /// Number of a warp among the transform warps.
  __device__ static int warp() { return (static_cast<int>(threadIdx.x) - Memory::kFirstTransformThread) / 32; }

  /// Places of a lane's 16 codes of a row, and of their elements: 16 bytes at `to`, and 16 at `to` ^ 16. Offsets into a box
  /// and into the tile. A warp takes 8 rows at once, of 128 codes only half of each: eight lanes, whose accesses come together,
  /// then meet neither a bank twice in the box (swizzled by its width) nor in the tile (swizzled by 128 bytes).
  struct Place {
    int from, to;
  };
  static constexpr int kTurns = !Memory::kPacked && kBoxDims == 128 ? 2 : 1;  ///< turns for 8 rows of a box
  static constexpr int kOfRows = kDim / 64;                                   ///< chunks of a lane in 8 rows
  template <bool kValues>
  __device__ Place place(int turn) const {
    int lane = threadIdx.x % 32;
    hopper::compute_here(lane);  // places are computed again for each tile: no register is left to keep them in
    if constexpr (Memory::kPacked && kValues)
      return {lane * 16, lane * 32 ^ PackedValues<kDim, 2>(block.a.page_size).swizzle(lane * 32)};
    if constexpr (Memory::kPacked) return {lane * 16, lane % 8 * kRowBytes + (lane / 8 * 2 ^ lane % 8) * 16};
    const int quarter = lane % 4;
    if constexpr (kBoxDims == 128) {
      const int half = lane / 4 % 2, row = lane / 8 * 2 + (half ^ turn);
      return {row * 128 + (half * 4 + quarter ^ row) * 16,
              half * static_cast<int>(sizeof(Tile::halves[0])) + row * kRowBytes + (quarter * 2 ^ row) * 16};
    }
    const int row = lane / 4;
    return {row * 64 + (quarter ^ row / 2 % 4) * 16, row * kRowBytes + (quarter * 2 ^ row) * 16};
  }

  /// Chunk `i` of a lane: what is added to its place in the warp's first rows. Packed codes lie in the order of lanes: keys as 8
  /// rows of 4 chunks, values as rows one after the other.
  template <bool kValues>
  __device__ static constexpr Place step(int i) {
    const int row = i / kOfRows * kWarps * 8, of_rows = i % kOfRows, half = static_cast<int>(sizeof(Tile::halves[0]));
    if (Memory::kPacked && kValues) return {row * kDim + of_rows * 32 * 16, row * kDim * 2 + of_rows * 32 * 32};
    if (Memory::kPacked) return {row * kDim + of_rows * 32 * 16, row * kRowBytes + of_rows * half};
    const int box = of_rows / kTurns;
    return {row * kBoxDims + box * static_cast<int>(sizeof(CodeTile::boxes[0])), row * kRowBytes + box * 2 * half};
  }

  template <typename Element, bool kE4m3>
  __device__ static void convert_chunk(unsigned char* rows, int to, const uint4& codes) {
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    std::uint32_t pairs[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      pairs[i] = tile::convert_pair<Element>(static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16), kE4m3);
    *reinterpret_cast<uint4*>(rows + to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    *reinterpret_cast<uint4*>(rows + (to ^ 16)) = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
  }

  /// Converts this warp's rows: of every kWarps times 8, eight. Codes of boxes that were not copied are converted, too, and
  /// their elements masked as in a 16-bit tile. Codes are loaded kAhead chunks early, the first of them before the tile is free:
  /// beside products a load takes long.
  template <typename Element, bool kE4m3, bool kValues, typename AwaitTile>
  __device__ void convert_tile(Tile& tile, const CodeTile& codes, AwaitTile&& await_tile) const {
    constexpr int kChunks = (kKeys / 8 + kWarps - 1) / kWarps * kOfRows;
    constexpr int kAhead = kChunks == 8 ? 8 : 4;  // head_dim 256 has 12 chunks, and registers for 4 of them
    const Place places[2] = {place<kValues>(0), place<kValues>(kTurns - 1)};
    const unsigned char* const from = codes.boxes[0] + warp() * 8 * (Memory::kPacked ? kDim : kBoxDims);
    unsigned char* const to = tile.halves[0] + warp() * 8 * (Memory::kPacked && kValues ? kDim * 2 : kRowBytes);
    const auto exists = [](int i) {
      return (i / kOfRows + 1) * kWarps * 8 <= kKeys || (warp() + i / kOfRows * kWarps) * 8 < kKeys;
    };
    const auto load = [&](int i) {
      return *reinterpret_cast<const uint4*>(from + places[i % kTurns].from + step<kValues>(i).from);
    };
    uint4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = load(i);
    await_tile();
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint4 now = ahead[i % kAhead];
      if (i + kAhead < kChunks && exists(i + kAhead)) ahead[i % kAhead] = load(i + kAhead);
      if (exists(i)) convert_chunk<Element, kE4m3>(to + step<kValues>(i).to, places[i % kTurns].to, now);
    }
  }

  /// A stage of codes to a stage of 16-bit elements, which is free when all consumers of the block have read it.
  template <typename Element, bool kValues>
  __device__ void convert(Tile& tile, hopper::Barrier& free, hopper::Barrier& full, const Ring& ring, const CodeTile& codes,
                          hopper::Barrier& codes_free, hopper::Barrier& codes_full, const CodeRing& at) const {
    const auto await_tile = [&] { hopper::wait(&free, ring.parity ^ 1); };
    hopper::wait(&codes_full, at.parity);
    if (block.a.cache_k.dtype == DType::fp8_e4m3fn)
      convert_tile<Element, true, kValues>(tile, codes, await_tile);
    else
      convert_tile<Element, false, kValues>(tile, codes, await_tile);
    hopper::fence_shared();
    __syncwarp();
    free_in_block(full);
    free_in_pair(codes_free);
  }

  __device__ void convert_keys(const Ring& ring, const CodeRing& at) const {
    auto& barriers = block.shared.code_barriers;
    convert<T, false>(block.shared.k[ring.stage], block.shared.k_free[ring.stage], block.shared.k_full[ring.stage], ring,
                      block.shared.codes.k[at.stage], barriers.k_free[at.stage], barriers.k_full[at.stage], at);
  }
  __device__ void convert_values(const Ring& ring, const CodeRing& at) const {
    auto& barriers = block.shared.code_barriers;
    convert<tile::F16, true>(block.shared.v[ring.stage], block.shared.v_free[ring.stage], block.shared.v_full[ring.stage], ring,
                             block.shared.codes.v[at.stage], barriers.v_free[at.stage], barriers.v_full[at.stage], at);
  }

  /// Positions in the rings by how many tiles came before.
  __device__ static Ring tile_ring(std::uint32_t before) {
    return {static_cast<int>(before % Memory::kStages), before / Memory::kStages & 1};
  }
  __device__ static CodeRing code_ring(std::uint32_t before) {
    return {static_cast<int>(before % Memory::kCodeStages), before / Memory::kCodeStages & 1};
  }

  /// Keys are converted a tile ahead of values: a stage of keys is given back when scores are there, and wanted again before the
  /// next product of values is asked for; one of values is given back a softmax later, and wanted again two products later.
  /// Converted after a tile's values, the next keys would wait for that.
  __device__ void convert_cached(int tiles, std::uint32_t& converted, std::uint32_t& codes) const {
#pragma unroll 1
    for (int n = 0; n <= tiles; ++n) {
      if (n < tiles) convert_keys(tile_ring(converted + n), code_ring(codes + n));
      if (n > 0) convert_values(tile_ring(converted + n - 1), code_ring(codes + n - 1));
    }
    converted += tiles, codes += tiles;
  }

  /// This step's rows. Boxes go round the warps; every warp arrives, as it does when it has converted.
  __device__ void copy_uncached_tile(Tile& to, const CUtensorMap& map, hopper::Barrier& free, hopper::Barrier& full,
                                     const Ring& ring, const Box& box, int kv_head) const {
    hopper::wait(&free, ring.parity ^ 1);
    if (threadIdx.x == Memory::kFirstTransformThread)
      hopper::arrive_and_expect(&full, box.bytes);
    else if (warp() > 0)
      free_in_block(full);
    __syncwarp();
    if (box.mine) hopper::copy_box(to.halves[box.part] + box.row * kRowBytes, &map, &full, box.part * 64, box.token, kv_head, 0);
  }
  __device__ void copy_uncached(const Job& job, std::uint32_t& converted) const {
    for (int n = job.order.first_fresh; n < job.tiles(); ++n, ++converted) {
      const Ring ring = tile_ring(converted);
      const Box box = boxes.uncached_box(job, key_tile<kKeys>(job, n), Memory::kHalves, kWarps, warp());
      copy_uncached_tile(block.shared.k[ring.stage], block.maps.key, block.shared.k_free[ring.stage],
                         block.shared.k_full[ring.stage], ring, box, job.item.kv_head);
      copy_uncached_tile(block.shared.v[ring.stage], block.maps.value, block.shared.v_free[ring.stage],
                         block.shared.v_full[ring.stage], ring, box, job.item.kv_head);
    }
  }

  __device__ void run() const {
    std::uint32_t converted = 0, codes = 0;
    queue.template for_each_job<false>([&](const Job& job, const typename Memory::JobRing&) {
      convert_cached(job.keys.cached_tiles, converted, codes);
      copy_uncached(job, converted);
    });
  }
};

}  // namespace quire::cuda::sm90::prefill
