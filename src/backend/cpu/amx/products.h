// SPDX-License-Identifier: Apache-2.0
// Stage: attend. The two matrix products of a tile on the AMX unit: scores = Q K^T and acc = acc * correction + weights V.
//
// An element's chain of additions is the same whatever the blocking: dims in steps of 32 for a score; chunks of 32 keys, and
// within a chunk the three parts of the weights, for an accumulator.
#pragma once

#include <cstdint>

#include "backend/cpu/amx/panels.h"
#include "backend/cpu/amx/tiles.h"
#include "backend/cpu/amx/weights.h"

namespace quire::cpu {
namespace {

/// Calls f(integral constant) for 0 .. kCount - 1, so that register numbers are constants.
template <int kNumber>
struct Constant {
  static constexpr int kValue = kNumber;
};
template <int kCount, class F>
inline __attribute__((always_inline)) void unroll(F&& f) {
  if constexpr (kCount > 0) {
    unroll<kCount - 1>(f);
    f(Constant<kCount - 1>{});
  }
}

/// Rows of K that are read where they lie: 16 keys from `from` on, `stride` bytes apart.
struct KeyBlock {
  const std::uint8_t* from;
  std::int64_t stride;
};

/// Scores of up to 16 rows of Q with two blocks of 16 keys, K as A operand and Q packed as B: the same sums of the same products
/// as in TileWork::score_chunk. out: [2][16 keys][16 rows].
/// Calls `between` now and then, for other work to be mixed in.
template <class T, class F>
void score_key_blocks(const KeyBlock* blocks, const std::uint8_t* q_panel, std::int64_t dims, float* out, F&& between) {
  unroll<2>([](auto c) { T::template zero<c.kValue>(); });
  for (std::int64_t d = 0; d < dims; d += kVectorDims) {
    T::template load<6>(q_panel + d / kVectorDims * kTileBytes, 64);
    unroll<2>([&](auto c) {
      T::template load<4>(blocks[c.kValue].from + 2 * d, blocks[c.kValue].stride);
      T::template dot<c.kValue, 4, 6>();
      between();
    });
  }
  unroll<2>([&](auto c) { T::template store<c.kValue>(out + c.kValue * 256, 64); });
}

/// Left operand of accumulate_rows: the weights of a block of rows, for the chunks [begin, end) of a tile.
struct WeightBlock {
  const std::uint32_t* words;  ///< words of the block's first row, as WeightRow lays them out
  std::int64_t row_stride;     ///< words from row to row
  std::int64_t part_stride;    ///< words from part to part
  ChunkRange chunks;
};

/// acc += weights V for 16 rows and all dims. Calls `between` now and then, as above.
template <class T, class F>
void accumulate_rows(float* acc, std::int64_t dims, const WeightBlock& w, const std::uint8_t* values, F&& between) {
  for (std::int64_t d = 0; d < dims; d += 32, acc += 32, values += 2 * kTileBytes) {
    T::template load<0>(acc, 4 * dims);
    T::template load<1>(acc + 16, 4 * dims);
    for (std::int64_t chunk = w.chunks.begin; chunk < w.chunks.end; ++chunk) {
      const std::uint8_t* v = values + chunk * (dims / 16) * kTileBytes;
      for (int part = 0; part < kParts; ++part) {
        T::template load<4>(w.words + part * w.part_stride + chunk * 16, 4 * w.row_stride);
        unroll<2>([&](auto b) {
          T::template load<6>(v + b.kValue * kTileBytes, 64);
          T::template dot<b.kValue, 4, 6>();
          between();
        });
      }
    }
    T::template store<0>(acc, 4 * dims);
    T::template store<1>(acc + 16, 4 * dims);
  }
}

}  // namespace
}  // namespace quire::cpu
