// SPDX-License-Identifier: Apache-2.0
// Tiles of fp8 caches: codes in shared memory, converted in registers, from where wgmma takes keys and values.
//
// Keys and values are the A operand of both products ("swap-AB"), and A may come from registers: nothing converted is written
// back. Every e4m3fn and e5m2 value is an f16, so nothing is lost. bf16 queries become f16, too (query_to_f16.h), and the weights
// are f16 whatever the query is: their two f16 parts hold more than two bf16 parts would.
//
// Fragments of A that a thread needs (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"): rows r = lane / 4 and r + 8 of
// its warp's 16, columns 2 c + {0, 1} and 2 c + {8, 9} of 16, c = lane % 4. ldmatrix moves bytes in pairs and hands out four
// bytes a matrix:
//
//   keys (not transposed): dims 4 c + {0..3} of key r. Dims 4 c + {0, 1} are columns 2 c + {0, 1}, the others 2 c + {8, 9}; the
//   query's dims are put into shared memory in that order.
//
//   values (transposed): dims 2 r + {0, 1} of keys 2 c + {0, 1}. One permutation of bytes makes pairs of keys; dim 2 r is row r,
//   and dim 2 r + 1 is row r + 8.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "backend/cuda/hopper/instructions.h"
#include "backend/cuda/hopper/wgmma_narrow.h"
#include "backend/cuda/ptx.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/sm90/query_to_f16.h"
#include "backend/cuda/tile/convert_fp8.h"
#include "backend/cuda/tile/element.h"

namespace quire::cuda::sm90::decode {

/// Calls load(std::true_type()) for e4m3fn, load(std::false_type()) for e5m2.
template <typename Load>
__device__ inline void of_format(bool e4m3, Load load) {
  if (e4m3)
    load(std::true_type());
  else
    load(std::false_type());
}

template <typename T, int kDim_>
struct Fp8Tiles {
  using Weight = tile::F16;  ///< type of the weights and values in the second product
  static constexpr int kDim = kDim_;
  static constexpr int kHeads = 1;  ///< KV heads of a tile
  static constexpr bool kInRegisters = true;
  static constexpr bool kHoldUncachedRows = false;               ///< rows of this step have 16 bits, rows of a tile 8
  static constexpr bool kScalesQuery = T::kDType != DType::f16;  ///< each row gets a scale of its own when it becomes f16
  static constexpr int kPartsAtOnce = 8;                         ///< parts that a merge loads together; more cost registers
  static constexpr bool kDimsInPairs = true;                     ///< dim_of(block, 1) is dim_of(block, 0) + 1, even
  static constexpr int kBoxDims = kDim < 128 ? kDim : 128, kBoxes = kDim / kBoxDims;
  static constexpr int kRowBytes = kBoxDims;  ///< bytes of a key in a box, and the width of the box's swizzle
  static constexpr int kElementBytes = 1;
  static constexpr int kBlocks = kDim / 64;  ///< blocks of 64 dims

  /// Warpgroups of a block, and blocks of an SM.
  template <int kRows>
  static constexpr int groups() {
    return kRows == 8 && kDim <= 128 ? 1 : 2;
  }
  template <int kRows>
  static constexpr int blocks() {
    return kRows == 8 && kDim <= 128 ? 4 : 1;
  }

  static constexpr int kProducerWarps = 1;  ///< a block of one warpgroup has half as many boxes, and no registers for more

  struct Tile {
    Byte boxes[kBoxes][kTileKeys * kRowBytes];
  };
  struct Keys {
    std::uint32_t a[kDim / 16][4];
  };
  struct Values {
    std::uint32_t a[kBlocks][kTileKeys / 16][4];
  };

  static constexpr int kBoxChunks = kBoxDims / 16;

  /// A box of tokens from `token` of a page on to row `row` of a tile; `side`: which of those side by side.
  template <bool kValues>
  __device__ static void copy_box(Tile& to, int row, int side, const CUtensorMap* map, hopper::Barrier* full, int token,
                                  int kv_head, int page) {
    hopper::copy_box_once(to.boxes[side] + row * kRowBytes, map, full, side * kBoxDims, token, kv_head, page);
  }

  __device__ static std::uint32_t swizzle(std::uint32_t key) { return kBoxDims == 128 ? key % 8 : key / 2 % 4; }
  /// 16 bytes of row `key`.
  __device__ static Byte* chunk_at(Tile& tile, int key, int chunk) {
    return tile.boxes[kBoxes == 1 ? 0 : chunk / 8] + key * kRowBytes + (chunk % 8 ^ swizzle(key)) * 16;
  }
  __device__ static void put_keys(Tile& tile, int key, int chunk, const uint4& dims) {
    *reinterpret_cast<uint4*>(chunk_at(tile, key, chunk)) = dims;
  }
  __device__ static void put_values(Tile& tile, int key, int chunk, const uint4& dims, int) { put_keys(tile, key, chunk, dims); }
  __device__ static uint4 values_of(const Tile& tile, int key, int chunk, int) {
    return *reinterpret_cast<const uint4*>(chunk_at(const_cast<Tile&>(tile), key, chunk));
  }
  __device__ static float value_at(const Tile& tile, int key, int dim, bool e4m3, int) {
    const Byte code = chunk_at(const_cast<Tile&>(tile), key, dim / 16)[dim % 16];
    return tile::F16::unpack(tile::convert_pair<tile::F16>(code, e4m3)).x;
  }

  /// 16 codes with zeros for infinities and NaN.
  __device__ static uint4 finite_of(const uint4& chunk, bool e4m3) {
    const std::uint32_t mask = e4m3 ? 0x7F7F7F7Fu : 0x7C7C7C7Cu;  // bits of NaN in e4m3; bits of infinity and NaN in e5m2
    const auto finite = [&](std::uint32_t codes) { return codes & ~__vcmpeq4(codes & mask, mask); };
    return {finite(chunk.x), finite(chunk.y), finite(chunk.z), finite(chunk.w)};
  }

  /// Place of pair `i` of chunk `chunk` (8 dims) of a query row: pairs 0 2 4 6 of 16 dims before 1 3 5 7.
  __device__ static Byte* query_pair(Byte* row, int swizzle, int chunk, int i) {
    return row + (chunk % 8 / 2 * 2 + i % 2 ^ swizzle) * 16 + chunk % 2 * 8 + i / 2 * 4;
  }
  /// Chunk `chunk` of a query row to its place; zeros if it does not exist.
  __device__ static void copy_query(Byte* row, int swizzle, int chunk, const std::uint16_t* dims, bool exists) {
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::copy_async_4(query_pair(row, swizzle, chunk, i), dims + i * 2, exists ? 4 : 0);
  }
  /// Puts a chunk as f16, where neighbouring lanes have the row's other chunks; returns the value of 1 in the row.
  __device__ static float put_query(Byte* row, int swizzle, int chunk, const std::uint16_t* dims, bool exists) {
    const uint4 is = exists ? *reinterpret_cast<const uint4*>(dims) : uint4{};
    const std::uint32_t pairs[4] = {is.x, is.y, is.z, is.w};
    const float factor = factor_to_f16<kDim / 8>(pairs);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<std::uint32_t*>(query_pair(row, swizzle, chunk, i)) = pair_to_f16(pairs[i], factor);
    return inverse_power(factor);
  }
  /// Puts a chunk of e4m3fn codes as f16.
  __device__ static void put_codes(Byte* row, int swizzle, int chunk, const Byte* dims, bool exists) {
    const uint2 codes = exists ? *reinterpret_cast<const uint2*>(dims) : uint2{};
    std::uint32_t pairs[4];
    tile::convert_four<true>(codes.x, pairs[0], pairs[1]);
    tile::convert_four<true>(codes.y, pairs[2], pairs[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) *reinterpret_cast<std::uint32_t*>(query_pair(row, swizzle, chunk, i)) = pairs[i];
  }
  /// The row of a key among the weights.
  __device__ static std::uint32_t weight_row(std::uint32_t key) { return key; }
  /// The dim of accumulator rows lane / 4 + 8 i of a warp's block `block`.
  __device__ static int dim_of(int block, int i, int lane, int warp) { return (warp * kBlocks + block) * 16 + lane / 4 * 2 + i; }

  template <bool kE4m3>
  __device__ static void load_keys_of(Keys& keys, const Tile& tile) {
    const std::uint32_t lane = threadIdx.x % 32, key = threadIdx.x / 32 % 4 * 16 + lane % 16;
    const std::uint32_t row = ptx::shared_address(tile.boxes[0]) + key * kRowBytes, chunk = lane / 16 ^ swizzle(key);
#pragma unroll
    for (int step = 0; step < kDim / 16; step += 2) {
      std::uint32_t codes[4];
      ptx::load_matrices(codes, row + step / kBoxChunks * sizeof tile.boxes[0] + (chunk ^ step % kBoxChunks) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i)  // i % 2: rows r, r + 8; low and high codes: columns from 2 c, from 2 c + 8
        tile::convert_four<kE4m3>(codes[i], keys.a[step + i / 2][i % 2], keys.a[step + i / 2][i % 2 + 2]);
    }
  }
  __device__ static void load_keys(Keys& keys, const Tile& tile, bool e4m3) {
    of_format(e4m3, [&](auto is_e4m3) { load_keys_of<is_e4m3>(keys, tile); });
  }

  template <bool kE4m3>
  __device__ static void load_values_of(Values& values, const Tile& tile) {
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // Matrices of one ldmatrix: two groups of 8 keys of a step, in two blocks of dims or two steps.
    constexpr int kPairs = kBlocks == 1 ? 1 : kBlocks / 2, kSteps = kBlocks == 1 ? 2 : 1;
    const std::uint32_t key = kBlocks == 1 ? lane : lane % 16, first = warp * kBlocks + (kBlocks == 1 ? 0 : lane / 16);
    const std::uint32_t box = ptx::shared_address(tile.boxes[0]) + first / kBoxChunks * sizeof tile.boxes[0];
    const std::uint32_t row = box + key * kRowBytes, chunk = first % kBoxChunks ^ swizzle(key);
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; step += kSteps)
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        std::uint32_t codes[4];
        ptx::load_matrices_transposed(codes, row + (chunk ^ pair * 2) * 16 + step * 16 * kRowBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int block = kBlocks == 1 ? 0 : pair * 2 + i / 2, of_step = kBlocks == 1 ? step + i / 2 : step;
          auto& a = values.a[block][of_step];
          tile::convert_four<kE4m3>(__byte_perm(codes[i], 0, 0x3120), a[i % 2 * 2], a[i % 2 * 2 + 1]);
        }
      }
  }
  __device__ static void load_values(Values& values, const Tile& tile, bool e4m3, int) {
    of_format(e4m3, [&](auto is_e4m3) { load_values_of<is_e4m3>(values, tile); });
  }

  /// Adds the products of step `step` (16 dims of query half `half`).
  template <int kCount, typename AnyTile>
  __device__ static void multiply_keys(float (&s)[kCount], const Keys& keys, const AnyTile&, std::uint64_t query, int half,
                                       int step) {
    hopper::wgmma<true, 0>(s, keys.a[half * 4 + step], query, half + step);
  }
  /// Adds the products of 16 keys with 64 dims.
  template <int kCount, typename AnyTile>
  __device__ static void multiply_values(float (&out)[kCount], const Values& values, const AnyTile&, std::uint64_t weights,
                                         int half, int step, int) {
    hopper::wgmma<true, 1>(out, values.a[half][step], weights, 1);
  }
};

}  // namespace quire::cuda::sm90::decode
