// SPDX-License-Identifier: Apache-2.0
// Tiles of packed caches for decode: packed_layout.h says how they lie. What is said of keys and values in plain_tiles.h and
// fp8_tiles.h holds here, but for where their elements are.
#pragma once

#include "backend/cuda/sm90/decode/fp8_tiles.h"
#include "backend/cuda/sm90/decode/plain_tiles.h"
#include "backend/cuda/sm90/packed_layout.h"

namespace quire::cuda::sm90::decode {

/// Common part of both kinds of packed tiles. Base: PlainTiles or Fp8Tiles of kDim.
template <typename Base, int kDim, int kElementBytes>
struct PackedTilesOf : Base {
  static constexpr int kBoxes = 1;                        ///< side by side
  static constexpr int kRowBytes = kDim * kElementBytes;  ///< bytes of a token's row in a box
  using KeyLayout = PackedKeys<kDim, kElementBytes>;
  using ValueLayout = PackedValues<kDim, kElementBytes>;

  struct Tile {
    Byte bytes[kTileKeys * kRowBytes];
  };

  /// A box of tokens from `token` of a page on to row `row` of a tile.
  template <bool kValues>
  __device__ static void copy_box(Tile& to, int row, int, const CUtensorMap* map, hopper::Barrier* full, int token, int kv_head,
                                  int page) {
    hopper::copy_box_once(to.bytes + row * kRowBytes, map, full, kValues ? token : 0, 0, kValues ? 0 : token / kPackedKeys,
                          kv_head, page);
  }

  /// Chunk `chunk` (16 bytes of dims) of row `key`.
  __device__ static void put_keys(Tile& tile, int key, int chunk, const uint4& dims) {
    *reinterpret_cast<uint4*>(tile.bytes + KeyLayout::chunk(key, chunk)) = dims;
  }
  __device__ static void put_values(Tile& tile, int key, int chunk, const uint4& dims, int page_size) {
    const ValueLayout layout(page_size);
    constexpr int kDims = 16 / kElementBytes;
    const std::uint32_t words[4] = {dims.x, dims.y, dims.z, dims.w};
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const std::uint32_t element = words[i * kElementBytes / 4] >> i * kElementBytes % 4 * 8;
      Byte* const to = tile.bytes + layout.element(key, chunk * kDims + i);
      if constexpr (kElementBytes == 1)
        *to = static_cast<Byte>(element);
      else
        *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(element);
    }
  }
  __device__ static uint4 values_of(const Tile& tile, int key, int chunk, int page_size) {
    const ValueLayout layout(page_size);
    constexpr int kDims = 16 / kElementBytes;
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const Byte* const from = tile.bytes + layout.element(key, chunk * kDims + i);
      const std::uint32_t element = kElementBytes == 1 ? *from : *reinterpret_cast<const std::uint16_t*>(from);
      words[i * kElementBytes / 4] |= element << i * kElementBytes % 4 * 8;
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

template <typename T, int kDim>
struct PackedTiles : PackedTilesOf<PlainTiles<T, kDim>, kDim, 2> {
  using KeyLayout = PackedKeys<kDim, 2>;
  using ValueLayout = PackedValues<kDim, 2>;
  static constexpr bool kF16 = T::kDType == DType::f16;

  __device__ static float value_at(const auto& tile, int key, int dim, bool, int page_size) {
    return T::unpack(*reinterpret_cast<const std::uint16_t*>(tile.bytes + ValueLayout(page_size).element(key, dim))).x;
  }
  __device__ static void load_keys(auto&, const auto&, bool) {}
  __device__ static void load_values(auto&, const auto&, bool, int) {}

  /// Adds the products of step `step` (16 dims of query half `half`).
  template <int kCount>
  __device__ static void multiply_keys(float (&s)[kCount], const auto&, const auto& k, std::uint64_t query, int half, int step) {
    const std::uint64_t keys = hopper::matrix<hopper::Swizzle::none>(k.bytes, KeyLayout::kGroupBytes, KeyLayout::kChunkBytes);
    hopper::wgmma<kF16, 0, 0>(s, hopper::advanced(keys, (half * 4 + step) * 2 * KeyLayout::kChunkBytes), query, half + step);
  }
  /// Adds the products of 16 keys with 64 dims.
  template <int kCount>
  __device__ static void multiply_values(float (&out)[kCount], const auto&, const auto& v, std::uint64_t weights, int half,
                                         int step, int page_size) {
    const ValueLayout layout(page_size);
    const std::uint64_t values = hopper::matrix(layout.swizzle_mode(), v.bytes, layout.stride());
    hopper::wgmma<kF16, 0, 1>(out, hopper::advanced(values, layout.step(step) + half * 64 * layout.row_bytes()), weights, 1);
  }
};

/// Codes are converted in registers (fp8_tiles.h). ldmatrix hands a thread dims 4 c + {0..3} of key r, as there, and tokens
/// 4 c + {0..3} of dim r: tokens 4 c + {0, 1} are columns 2 c + {0, 1} of the product with values, the others 2 c + {8, 9}.
/// Weights are put into shared memory in that order.
template <typename T, int kDim>
struct PackedFp8Tiles : PackedTilesOf<Fp8Tiles<T, kDim>, kDim, 1> {
  using KeyLayout = PackedKeys<kDim, 1>;
  using ValueLayout = PackedValues<kDim, 1>;
  static constexpr int kBlocks = kDim / 64;  ///< blocks of 64 dims
  static constexpr bool kDimsInPairs = false;

  __device__ static float value_at(const auto& tile, int key, int dim, bool e4m3, int page_size) {
    const Byte code = tile.bytes[ValueLayout(page_size).element(key, dim)];
    return tile::F16::unpack(tile::convert_pair<tile::F16>(code, e4m3)).x;
  }

  /// The row of a key among the weights.
  __device__ static std::uint32_t weight_row(std::uint32_t key) {
    return key / 16 * 16 + key % 2 + key / 2 % 2 * 8 + key % 16 / 4 * 2;
  }
  /// The dim of accumulator rows lane / 4 + 8 i of a warp's block `block`.
  __device__ static int dim_of(int block, int i, int lane, int warp) { return block * 64 + warp * 16 + lane / 4 + i * 8; }

  template <bool kE4m3>
  __device__ static void load_keys_of(auto& keys, const auto& tile) {
    const int lane = static_cast<int>(threadIdx.x % 32), key = static_cast<int>(threadIdx.x / 32 % 4 * 16) + lane % 16;
    const std::uint32_t from = ptx::shared_address(tile.bytes) + KeyLayout::chunk(key, lane / 16);
#pragma unroll
    for (int step = 0; step < kDim / 16; step += 2) {
      std::uint32_t codes[4];
      ptx::load_matrices(codes, from + step * KeyLayout::kChunkBytes);
#pragma unroll
      for (int i = 0; i < 4; ++i)  // i % 2: rows r, r + 8; low and high codes: columns from 2 c, from 2 c + 8
        tile::convert_four<kE4m3>(codes[i], keys.a[step + i / 2][i % 2], keys.a[step + i / 2][i % 2 + 2]);
    }
  }
  __device__ static void load_keys(auto& keys, const auto& tile, bool e4m3) {
    of_format(e4m3, [&](auto is_e4m3) { load_keys_of<is_e4m3>(keys, tile); });
  }

  /// Matrices of one ldmatrix: dims r and r + 8 of two steps.
  template <bool kE4m3>
  __device__ static void load_values_of(auto& values, const auto& tile, int page_size) {
    const ValueLayout layout(page_size);
    const int lane = static_cast<int>(threadIdx.x % 32), dim = static_cast<int>(threadIdx.x / 32 % 4 * 16) + lane % 16;
    const std::uint32_t from = ptx::shared_address(tile.bytes) + layout.step(lane / 16) + dim * layout.row_bytes();
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; step += 2)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        std::uint32_t codes[4];
        ptx::load_matrices(codes, from + layout.step(step) + block * 64 * layout.row_bytes());
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          auto& a = values.a[block][step + i / 2];
          tile::convert_four<kE4m3>(codes[i], a[i % 2], a[i % 2 + 2]);
        }
      }
  }
  __device__ static void load_values(auto& values, const auto& tile, bool e4m3, int page_size) {
    of_format(e4m3, [&](auto is_e4m3) { load_values_of<is_e4m3>(values, tile, page_size); });
  }
};

}  // namespace quire::cuda::sm90::decode
