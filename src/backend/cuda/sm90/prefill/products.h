// SPDX-License-Identifier: Apache-2.0
// The two products of a tile of prefill, by wgmma:
//
//     S [64 x keys] = Q [64 x d] K^T        both from shared memory
//     O [64 x dv]  += P [64 x keys] V       P from registers: a thread's scores are its weights
#pragma once

#include "backend/cuda/sm90/packed_layout.h"
#include "backend/cuda/sm90/prefill/rows.h"
#include "backend/cuda/sm90/prefill/softmax.h"

namespace quire::cuda::sm90::prefill {

/// T: type of the query.
template <typename T, typename Memory>
struct Products {
  using State = typename Softmax<T, Memory>::State;
  using Weights = typename Softmax<T, Memory>::Weights;
  using Job = typename Memory::Job;
  using Query = typename Memory::Query;
  using Tile = typename Memory::Tile;
  using ValueTile = typename Memory::ValueTile;
  using Ring = typename Memory::TileRings;
  static constexpr int kDim = Memory::kDim, kHalves = Memory::kHalves, kRowBytes = Memory::kRowBytes, kKeys = Memory::kKeys;
  static constexpr bool kCodes = Memory::kCodes, kBeside = Memory::kBeside;
  static constexpr bool kPackedValues = Memory::kPacked, kPackedKeys = Memory::kPacked && !kCodes;  ///< tiles of cached ones
  using KeyLayout = PackedKeys<kDim, 2>;
  using ValueLayout = PackedValues<kDim, 2>;

  const Block<Memory> block;

  /// True if tile `n` lies as in a packed cache; this step's keys and values are rows. `unmasked`: no row has a mask in the tile,
  /// so it is from the cache. The reduction tells ptxas that all threads have the same answer.
  __device__ static bool is_packed(const Job& job, bool unmasked, int n) {
    if constexpr (!Memory::kPacked) return false;
    return __reduce_or_sync(~0u, unmasked || !job.is_fresh(n)) != 0;
  }

  /// Operands of the scores of a tile. The fence in operands() is not for them: where a warp is known to be together, ptxas
  /// computes addresses once, in uniform registers.
  struct Operands {
    hopper::Matrix rows, keys;
    int half_bytes = 0, step_bytes = 0;  ///< distances of the next 64 and the next 16 dims of keys
  };
  __device__ Operands operands(const Query& query, const Ring& ring, bool packed) const {
    const auto& k = block.shared.k[ring.k.stage].halves[0];
    hopper::wgmma_begin();
    if constexpr (!kPackedKeys)
      return {hopper::Matrix(query.halves[0] + Lane::group() * 64 * kRowBytes, 8 * kRowBytes), hopper::Matrix(k, 8 * kRowBytes)};
    return {hopper::Matrix(query.halves[0] + Lane::group() * 64 * kRowBytes, 8 * kRowBytes),
            packed ? hopper::Matrix(k, KeyLayout::kGroupBytes, KeyLayout::kChunkBytes, hopper::Swizzle::none)
                   : hopper::Matrix(k, 8 * kRowBytes),
            packed ? 8 * KeyLayout::kChunkBytes : static_cast<int>(sizeof(Tile::halves[0])),
            packed ? 2 * KeyLayout::kChunkBytes : 32};
  }

  template <int kCount>
  __device__ static void start_scores(float (&s)[kCount], const Operands& from) {
    hopper::wgmma_begin();
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int keys = kPackedKeys ? half * from.half_bytes + step * from.step_bytes
                                     : half * static_cast<int>(sizeof(Tile::halves[0])) + step * 32;
        hopper::multiply_shared<is_f16<T>>(s, from.rows.at(half * sizeof(Query::halves[0]) + step * 32), from.keys.at(keys),
                                           half + step);
      }
    hopper::wgmma_commit();
  }

  template <typename Element, int kCount, bool kPacked>
  __device__ void multiply_values(State& state, const Weights& p, const hopper::Matrix& values) const {
    hopper::wgmma_begin();
#pragma unroll
    for (int step = 0; step < kCount / 16; ++step)
      hopper::multiply_registers<is_f16<Element>, !kPacked>(
          state.out, p + 4 * step, values.at(kPacked ? ValueLayout(block.a.page_size).step(step) : step * 16 * kRowBytes));
    hopper::wgmma_commit();
  }
  template <typename Element, bool kPacked, bool kWhole>
  __device__ void multiply_values(State& state, const Weights& p, const hopper::Matrix& values, bool half) const {
    if (kBeside && !kWhole && __reduce_or_sync(~0u, half) != 0)  // the reduction tells ptxas that all threads agree
      multiply_values<Element, kKeys / 2, kPacked>(state, p, values);
    else
      multiply_values<Element, kKeys, kPacked>(state, p, values);
  }
  /// `half`: of the tile's first half alone. kWhole: `half` is never true.
  template <typename Element, bool kWhole = false>
  __device__ void start_values(State& state, const Weights& p, const ValueTile& v, bool half, bool packed) const {
    const ValueLayout layout(block.a.page_size);
    hopper::wgmma_begin();
    if (kPackedValues && packed)
      multiply_values<Element, kPackedValues, kWhole>(
          state, p, hopper::Matrix(v.halves[0], layout.stride(), 16, layout.swizzle_mode()), half);
    else
      multiply_values<Element, false, kWhole>(state, p, hopper::Matrix(v.halves[0], 8 * kRowBytes, sizeof(v.halves[0])), half);
  }
};

}  // namespace quire::cuda::sm90::prefill
