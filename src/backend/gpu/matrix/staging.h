// SPDX-License-Identifier: Apache-2.0
// Rows of a tile on their way from global to shared memory: fetched into registers as they are stored, and later converted and
// written, so that loads are under way while something else is computed.
//
// A thread stages the same piece of each of its rows. Rows of V are taken four keys at a time, to be transposed (value_tile.h).
#pragma once

#include "backend/gpu/matrix/convert_fp8.h"
#include "backend/gpu/matrix/sizes.h"
#include "backend/gpu/matrix/value_tile.h"
#include "backend/gpu/matrix/whole_rows.h"

namespace quire::gpu::matrix {

/// Where elements of rows that are not whole lie.
struct RowStrides {
  semantics::KvStrides cached, fresh;
  int first_fresh = 0;  ///< keys of the tile from this one on are this step's
};

/// What a thread holds of a tile of kKeys rows that kThreads threads stage: kStagedPieces pieces of every chunk, from
/// `first_piece` on.
template <class Gpu, class T, int kDim, int kKeys, int kThreads, int kStagedPieces>
struct Staging {
  static constexpr int kWords = kPieceDims<kDim> / 2;
  static constexpr int kRows = kThreads / kChunks / kStagedPieces;  ///< rows, or quads of them, that the threads stage at once
  static constexpr int kCount = kKeys / kRows;
  static_assert(kRows * kChunks * kStagedPieces == kThreads && kCount % 4 == 0);
  Words<kWords> raw[kCount];

  QUIRE_DEVICE static int chunk_of(int thread) { return thread % kChunks; }
  QUIRE_DEVICE static int piece_of(int thread) { return thread / kChunks % kStagedPieces; }
  /// First dim of the thread.
  QUIRE_DEVICE static int dim_of(int thread, int first_piece) {
    return chunk_of(thread) * (kDim / kChunks) + (first_piece + piece_of(thread)) * kPieceDims<kDim>;
  }
  /// Row of raw[i].
  template <bool kValues>
  QUIRE_DEVICE static int key_of(int thread, int i) {
    const int row = thread / (kChunks * kStagedPieces);
    return kValues ? (row + i / 4 * kRows) * 4 + i % 4 : row + i * kRows;
  }

  template <bool kValues>
  QUIRE_DEVICE void fetch(const std::uint64_t* rows, bool coded, bool whole_rows, const RowStrides& strides, int thread,
                          int first_piece) {
    const int d = dim_of(thread, first_piece);
    if (!whole_rows) return fetch_elements<kValues>(rows, coded, strides, thread, d);
    if (!coded) {
      QUIRE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const std::uint64_t row = rows[key_of<kValues>(thread, i)];
        raw[i] = {};
        if (row != 0) raw[i] = load_global<kWords>(row + 2 * d);
      }
    } else {
      QUIRE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const std::uint64_t row = rows[key_of<kValues>(thread, i)];
        Words<kWords / 2> codes{};
        if (row != 0) codes = load_global<kWords / 2>(row + d);
        raw[i] = {};
        QUIRE_UNROLL
        for (int w = 0; w < kWords / 2; ++w) raw[i].word[w] = codes.word[w];
      }
    }
  }

  /// Each element is shifted in from above: no running index chooses a register, and unrolled this would be most of the kernel.
  template <bool kValues>
  QUIRE_DEVICE void fetch_elements(const std::uint64_t* rows, bool coded, const RowStrides& strides, int thread, int d) {
    const int bits = coded ? 8 : 16;
    ElementWalk cached(strides.cached, d, bits / 8), fresh(strides.fresh, d, bits / 8);
    QUIRE_UNROLL
    for (int i = 0; i < kCount; ++i) raw[i] = {};
    QUIRE_NO_UNROLL
    for (int e = 0; e < kPieceDims<kDim>; ++e) {
      QUIRE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int key = key_of<kValues>(thread, i);
        if (rows[key] == 0) continue;
        const std::uint64_t at = rows[key] + static_cast<std::uint64_t>((key < strides.first_fresh ? cached : fresh).offset());
        shift_in(raw[i], coded ? load_global_byte(at) : load_global_half(at), coded, bits);
      }
      cached.next();
      fresh.next();
    }
  }
  QUIRE_DEVICE static void shift_in(Words<kWords>& words, std::uint32_t code, bool coded, int bits) {
    QUIRE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      const bool last = w == kWords - 1 || (coded && w == kWords / 2 - 1);
      const std::uint32_t above = last ? code : words.word[w == kWords - 1 ? w : w + 1];
      words.word[w] = words.word[w] >> bits | above << (32 - bits);
    }
  }

  QUIRE_DEVICE void convert(DType type) {
    if (is_coded(type)) convert_codes<T, Gpu>(raw, type);
  }

  QUIRE_DEVICE void store_keys(std::uint16_t* keys, int thread) const {
    QUIRE_UNROLL
    for (int i = 0; i < kCount; ++i)
      *reinterpret_cast<Words<kWords>*>(keys + key_of<false>(thread, i) * kPitch<kDim> + dim_of(thread, 0)) = raw[i];
  }
  /// Columns of `values`: kStagedPieces pieces of every chunk.
  QUIRE_DEVICE void store_values(Quad* values, int thread) const {
    constexpr int kColumns = kStagedPieces * kPieceDims<kDim> * kChunks;
    const int column = piece_of(thread) * kPieceDims<kDim> * kChunks + chunk_of(thread);
    QUIRE_UNROLL
    for (int i = 0; i < kCount; i += 4)
      store_quad(values + key_of<true>(thread, i) / 4 * kColumns + column, raw[i], raw[i + 1], raw[i + 2], raw[i + 3]);
  }
};

}  // namespace quire::gpu::matrix
