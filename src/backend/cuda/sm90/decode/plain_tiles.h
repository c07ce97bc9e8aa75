// SPDX-License-Identifier: Apache-2.0
// Tiles of 16-bit caches: both products read keys and values where the copy put them.
//
// A tile is one box of 64 keys x 64 dims for each 64 dims, its rows of 128 bytes swizzled by 128 bytes. This step's rows have the
// same type and overwrite rows of the tile.
#pragma once

#include "backend/cuda/hopper/instructions.h"
#include "backend/cuda/hopper/wgmma_narrow.h"
#include "backend/cuda/ptx.h"
#include "backend/cuda/sm90/instance.h"
#include "backend/cuda/tile/element.h"

namespace quire::cuda::sm90::decode {

template <typename T, int kDim_>
struct PlainTiles {
  using Weight = T;  ///< type of the weights in the second product
  static constexpr int kDim = kDim_;
  static constexpr int kHeads = 1;             ///< KV heads of a tile
  static constexpr bool kInRegisters = false;  ///< operands leave the tile before the products end
  static constexpr bool kHoldUncachedRows = true;
  static constexpr bool kScalesQuery = false;
  static constexpr int kPartsAtOnce = 16;      ///< parts that a merge loads together
  static constexpr bool kDimsInPairs = false;  ///< dim_of(block, 1) is dim_of(block, 0) + 1, even
  static constexpr int kBoxes = kDim / 64;     ///< side by side
  static constexpr int kBoxDims = 64;
  static constexpr int kRowBytes = 128;                    ///< bytes of a key in a box
  static constexpr int kBoxBytes = kTileKeys * kRowBytes;  ///< bytes of a box with all keys of a tile
  static constexpr int kElementBytes = 2;

  /// Warpgroups of a block, and blocks of an SM.
  template <int kRows>
  static constexpr int groups() {
    return kRows == 8 && kDim <= 128 ? 1 : 2;
  }
  template <int kRows>
  static constexpr int blocks() {
    return kRows == 8 && kDim <= 128 ? 2 : 1;
  }

  /// Producer warps of blocks of one warpgroup. A warp that copies a page of 16 a box is the limit where blocks are few for the
  /// memory (beside prefill): 100 cycles a box, 16 boxes a tile.
  static constexpr int kProducerWarps = 2;

  struct Tile {
    Byte boxes[kBoxes][kBoxBytes];
  };
  struct Keys {};
  struct Values {};

  /// A box of tokens from `token` of a page on to row `row` of a tile; `side`: which of those side by side.
  template <bool kValues>
  __device__ static void copy_box(Tile& to, int row, int side, const CUtensorMap* map, hopper::Barrier* full, int token,
                                  int kv_head, int page) {
    hopper::copy_box_once(to.boxes[side] + row * kRowBytes, map, full, side * kBoxDims, token, kv_head, page);
  }

  /// 16 bytes of row `key`.
  __device__ static Byte* chunk_at(Tile& tile, int key, int chunk) {
    return tile.boxes[chunk / 8] + key * kRowBytes + (chunk % 8 ^ key % 8) * 16;
  }
  __device__ static void put_keys(Tile& tile, int key, int chunk, const uint4& dims) {
    *reinterpret_cast<uint4*>(chunk_at(tile, key, chunk)) = dims;
  }
  __device__ static void put_values(Tile& tile, int key, int chunk, const uint4& dims, int) { put_keys(tile, key, chunk, dims); }
  __device__ static uint4 values_of(const Tile& tile, int key, int chunk, int) {
    return *reinterpret_cast<const uint4*>(chunk_at(const_cast<Tile&>(tile), key, chunk));
  }
  __device__ static float value_at(const Tile& tile, int key, int dim, bool, int) {
    const Byte* chunk = chunk_at(const_cast<Tile&>(tile), key, dim / 8);
    return T::unpack(reinterpret_cast<const std::uint16_t*>(chunk)[dim % 8]).x;
  }

  /// 8 elements with zeros for infinities and NaN.
  __device__ static uint4 finite_of(const uint4& chunk, bool) {
    const std::uint32_t exponents = T::kExponentMask << 16 | T::kExponentMask;
    const auto finite = [&](std::uint32_t pair) { return pair & ~__vcmpeq2(pair & exponents, exponents); };
    return {finite(chunk.x), finite(chunk.y), finite(chunk.z), finite(chunk.w)};
  }

  /// Chunk `chunk` (8 dims) of a query row to its place; zeros if it does not exist.
  __device__ static void copy_query(Byte* row, int swizzle, int chunk, const std::uint16_t* dims, bool exists) {
    ptx::copy_async_16(row + (chunk % 8 ^ swizzle) * 16, dims, exists ? 16 : 0);
  }
  /// The row of a key among the weights.
  __device__ static std::uint32_t weight_row(std::uint32_t key) { return key; }
  /// The dim of accumulator rows lane / 4 + 8 i of a warp's block `half`.
  __device__ static int dim_of(int half, int i, int lane, int warp) { return half * 64 + warp * 16 + lane / 4 + i * 8; }

  __device__ static void load_keys(Keys&, const Tile&, bool) {}
  __device__ static void load_values(Values&, const Tile&, bool, int) {}

  /// Adds the products of step `step` (16 dims of query half `half`).
  template <int kCount>
  __device__ static void multiply_keys(float (&s)[kCount], const Keys&, const Tile& k, std::uint64_t query, int half, int step) {
    const std::uint64_t keys = hopper::matrix<hopper::Swizzle::bytes128>(k.boxes[half], 8 * kRowBytes);
    hopper::wgmma<T::kDType == DType::f16, 0, 0>(s, hopper::advanced(keys, step * 32), query, half + step);
  }
  /// Adds the products of 16 keys with 64 dims.
  template <int kCount>
  __device__ static void multiply_values(float (&out)[kCount], const Values&, const Tile& v, std::uint64_t weights, int half,
                                         int step, int) {
    const std::uint64_t values = hopper::matrix<hopper::Swizzle::bytes128>(v.boxes[half], 8 * kRowBytes);
    hopper::wgmma<T::kDType == DType::f16, 1, 1>(out, hopper::advanced(values, step * 16 * kRowBytes), weights, 1);
  }
};

}  // namespace quire::cuda::sm90::decode
