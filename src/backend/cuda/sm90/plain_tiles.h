// Tiles of 16-bit caches: both products read keys and values where the copy put them.
//
// A tile is one box of 64 keys x 64 dims for each 64 dims, its rows of 128 bytes swizzled by 128 bytes. This step's rows have the
// same type and overwrite rows of the tile.
#pragma once

#include "backend/cuda/mma/element.h"
#include "backend/cuda/sm90/hopper.h"
#include "backend/cuda/sm90/instance.h"

namespace quire::cuda::sm90 {

template <typename T, int kDim_>
struct PlainTiles {
  using Weight = T;  ///< type of the weights in the second product
  static constexpr int kDim = kDim_;
  static constexpr int kStages = kDim == 64 ? 6 : 3;
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr bool kInRegisters = false;  ///< operands leave the tile before the products end
  static constexpr bool kHoldFreshRows = true;
  static constexpr int kBoxes = kDim / 64;                 ///< side by side
  static constexpr int kRowBytes = 128;                    ///< of a box
  static constexpr int kBoxBytes = kTileKeys * kRowBytes;  ///< of a tile
  static constexpr int kElementBytes = 2;

  struct Tile {
    Byte boxes[kBoxes][kBoxBytes];
  };
  struct Keys {};
  struct Values {};

  /// 16 bytes of row `key`.
  __device__ static Byte* chunk_at(Tile& tile, int key, int chunk) {
    return tile.boxes[chunk / 8] + key * kRowBytes + (chunk % 8 ^ key % 8) * 16;
  }
  __device__ static float value_at(const Tile& tile, int key, int dim, bool) {
    const Byte* chunk = chunk_at(const_cast<Tile&>(tile), key, dim / 8);
    return T::unpack(reinterpret_cast<const std::uint16_t*>(chunk)[dim % 8]).x;
  }

  /// Where chunk `chunk` (8 dims) of a query row goes.
  __device__ static void put_query(Byte* row, int swizzle, int chunk, uint4 dims) {
    *reinterpret_cast<uint4*>(row + (chunk ^ swizzle) * 16) = dims;
  }
  /// The dim of accumulator rows lane / 4 + 8 i of block `half`.
  __device__ static int dim_of(int half, int i) {
    return half * 64 + static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + i * 8;
  }

  __device__ static void load_keys(Keys&, const Tile&, bool) {}
  __device__ static void load_values(Values&, const Tile&, bool) {}

  /// Adds the products of step `step` (16 dims of query half `half`).
  __device__ static void multiply_keys(float (&s)[4], const Keys&, const Tile& k, std::uint64_t query, int half, int step) {
    const std::uint64_t keys = hopper::matrix<hopper::Swizzle::bytes128>(k.boxes[half], 8 * kRowBytes);
    hopper::wgmma<T::kDType == DType::f16, 0, 0>(s, hopper::advanced(keys, step * 32), query, half + step);
  }
  /// Adds the products of 16 keys with 64 dims.
  __device__ static void multiply_values(float (&out)[8], const Values&, const Tile& v, std::uint64_t weights, int half,
                                         int step) {
    const std::uint64_t values = hopper::matrix<hopper::Swizzle::bytes128>(v.boxes[half], 8 * kRowBytes);
    hopper::wgmma<T::kDType == DType::f16, 1, 1>(out, hopper::advanced(values, step * 16 * kRowBytes), weights, 1);
  }
};

}  // namespace quire::cuda::sm90
