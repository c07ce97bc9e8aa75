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

/// Scores of kRowTiles x 16 rows of Q with 32 keys. q: rows of bf16; k: the panels of two blocks of 16 keys.
template <class T, int kRowTiles>
void score_chunk(const std::uint8_t* q, std::int64_t dims, const std::uint8_t* k, float* scores, std::int64_t score_stride) {
  const std::int64_t block_bytes = dims / kVectorDims * kTileBytes;
  for (int b = 0; b < 2; ++b, k += block_bytes, scores += kTileRows) {
    unroll<kRowTiles>([](auto c) { T::template zero<c.kValue>(); });
    for (std::int64_t d = 0; d < dims; d += kVectorDims) {
      T::template load<6>(k + d / kVectorDims * kTileBytes, 64);
      unroll<kRowTiles>([&](auto r) {
        T::template load<4>(q + r.kValue * kTileRows * 2 * dims + 2 * d, 2 * dims);
        T::template dot<r.kValue, 4, 6>();
      });
    }
    unroll<kRowTiles>(
        [&](auto r) { T::template store<r.kValue>(scores + r.kValue * kTileRows * score_stride, 4 * score_stride); });
  }
}

/// Rows of K that are read where they lie: 16 keys from `from` on, `stride` bytes apart.
struct KeyBlock {
  const std::uint8_t* from;
  std::int64_t stride;
};

/// Scores of up to 16 rows of Q with two blocks of 16 keys, K as A operand and Q packed as B: the same sums of the same products
/// as in score_chunk. out: [2][16 keys][16 rows].
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

/// Left operand of accumulate_block: the weights of a block of rows, for the chunks [begin, end) of a tile.
struct WeightBlock {
  const std::uint32_t* words;  ///< of the block's first row, WeightRow's layout
  std::int64_t row_stride;     ///< words from row to row
  std::int64_t part_stride;    ///< words from part to part
  ChunkRange chunks;
};

/// acc += weights V for kRowTiles x 16 rows and kColTiles x 16 dims; one of the two is 1. `values` points at the dims' tiles of
/// chunk 0.
template <class T, int kRowTiles, int kColTiles, class F>
void accumulate_block(float* acc, std::int64_t acc_stride, const WeightBlock& w, const std::uint8_t* values,
                      std::int64_t chunk_bytes, F&& between) {
  unroll<kRowTiles * kColTiles>([&](auto c) {
    T::template load<c.kValue>(acc + c.kValue / kColTiles * kTileRows * acc_stride + c.kValue % kColTiles * 16, 4 * acc_stride);
  });
  for (std::int64_t chunk = w.chunks.begin; chunk < w.chunks.end; ++chunk) {
    const std::uint8_t* v = values + chunk * chunk_bytes;
    if constexpr (kColTiles == 1) T::template load<6>(v, 64);
    for (int part = 0; part < kParts; ++part) {
      unroll<kRowTiles>([&](auto r) {
        T::template load<4>(w.words + part * w.part_stride + r.kValue * kTileRows * w.row_stride + chunk * 16, 4 * w.row_stride);
        unroll<kColTiles>([&](auto b) {
          if constexpr (kColTiles > 1) T::template load<6>(v + b.kValue * kTileBytes, 64);
          T::template dot<r.kValue * kColTiles + b.kValue, 4, 6>();
          between();
        });
      });
    }
  }
  unroll<kRowTiles * kColTiles>([&](auto c) {
    T::template store<c.kValue>(acc + c.kValue / kColTiles * kTileRows * acc_stride + c.kValue % kColTiles * 16, 4 * acc_stride);
  });
}

/// acc += weights V for one block of kRowTiles x 16 rows and all dims. Calls `between` now and then, as above.
template <class T, int kRowTiles, class F>
void accumulate_rows(float* acc, std::int64_t dims, const WeightBlock& w, const std::uint8_t* values, F&& between) {
  const std::int64_t chunk_bytes = dims / 16 * kTileBytes;
  constexpr std::int64_t kDims = kRowTiles == 1 ? 32 : 16;
  for (std::int64_t d = 0; d < dims; d += kDims)
    accumulate_block<T, kRowTiles, kDims / 16>(acc + d, dims, w, values + d / 16 * kTileBytes, chunk_bytes, between);
}

}  // namespace
}  // namespace quire::cpu
