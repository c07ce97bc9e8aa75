// SPDX-License-Identifier: Apache-2.0
// Rows of a tile on their way from global to shared memory: fetched into registers as they are stored, and later converted and
// written, so that loads are under way while something else is computed.
//
// A thread stages the same piece of each of its rows. Rows of V are taken four keys at a time, to be transposed (value_tile.h).
#pragma once

#include "backend/hip/matrix/convert_fp8.h"
#include "backend/hip/matrix/packed_values.h"
#include "backend/hip/matrix/sizes.h"
#include "backend/hip/matrix/value_tile.h"
#include "backend/hip/matrix/whole_rows.h"

namespace quire::hip::matrix {

/// Strides and bounds by which the rows of a tile are read.
struct RowStrides {
  semantics::KvStrides cached, fresh;
  int first_fresh = 0;               ///< keys of the tile from this one on are this step's
  int seen_begin = 0, seen_end = 0;  ///< keys of the tile that have rows
};

/// Values of a tile are read as whole rows, as pieces of a packed cache, or element by element.
enum class ValueForm { rows, pieces, elements };

/// Tokens of a packed cache and this step's rows are of one form only where a tile has no more than one of them.
QUIRE_DEVICE ValueForm value_form(bool whole_rows, bool packed, int first_fresh, int tile_keys) {
  if (!whole_rows) return ValueForm::elements;
  if (!packed || first_fresh <= 0) return ValueForm::rows;
  return first_fresh >= tile_keys ? ValueForm::pieces : ValueForm::elements;
}

/// What a thread holds of a tile of kKeys rows that kThreads threads stage: kStagedPieces pieces of every chunk, from
/// `first_piece` on.
template <class Gpu, class T, int kDim, int kKeys, int kThreads, int kStagedPieces>
struct Staging {
  static constexpr int kWords = kPieceDims<kDim> / 2;
  static constexpr int kRows = kThreads / kChunks / kStagedPieces;  ///< rows, or quads of them, that the threads stage at once
  static constexpr int kCount = kKeys / kRows;
  static_assert(kRows * kChunks * kStagedPieces == kThreads && kCount % 4 == 0);
  using Pieces = PackedPieces<kDim, kKeys, kThreads>;
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

  /// Keys; a piece of a packed key is part of its 16 bytes of dims.
  QUIRE_DEVICE void fetch_keys(const std::uint64_t* rows, bool coded, bool whole_rows, bool packed, const RowStrides& strides,
                               int thread) {
    const int d = dim_of(thread, 0);
    if (!whole_rows) return fetch_elements<false>(rows, coded, strides, thread, d);
    const int size = coded ? 1 : 2, x = 16 / size;
    const std::int64_t of_row = d * size;
    const std::int64_t cached = packed ? d / x * strides.cached.chunk * size + d % x * size : of_row;
    fetch_pieces<false>(rows, coded, thread, [&](int key) { return key < strides.first_fresh ? cached : of_row; });
  }
  QUIRE_DEVICE void fetch_values(const std::uint64_t* rows, bool coded, ValueForm form, const RowStrides& strides, int thread,
                                 int first_piece) {
    const int d = dim_of(thread, first_piece);
    if (form == ValueForm::elements) return fetch_elements<true>(rows, coded, strides, thread, d);
    if (form == ValueForm::pieces) return fetch_tokens(rows, coded, strides, thread, first_piece);
    fetch_pieces<true>(rows, coded, thread, [&](int) { return static_cast<std::int64_t>(d * (coded ? 1 : 2)); });
  }

  /// offset(key): bytes from the row's begin to the thread's piece.
  template <bool kValues, class Offset>
  QUIRE_DEVICE void fetch_pieces(const std::uint64_t* rows, bool coded, int thread, Offset&& offset) {
    if (!coded) {
      QUIRE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int key = key_of<kValues>(thread, i);
        raw[i] = {};
        if (rows[key] != 0) raw[i] = load_global<kWords>(rows[key] + static_cast<std::uint64_t>(offset(key)));
      }
    } else {
      QUIRE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int key = key_of<kValues>(thread, i);
        set_codes(i, rows[key] != 0 ? load_global<kWords / 2>(rows[key] + static_cast<std::uint64_t>(offset(key)))
                                    : Words<kWords / 2>{});
      }
    }
  }
  QUIRE_DEVICE void set_codes(int i, const Words<kWords / 2>& codes) {
    raw[i] = {};
    QUIRE_UNROLL
    for (int w = 0; w < kWords / 2; ++w) raw[i].word[w] = codes.word[w];
  }

  /// Pieces of a packed cache; tokens that no row sees become zeros.
  QUIRE_DEVICE void fetch_tokens(const std::uint64_t* rows, bool coded, const RowStrides& strides, int thread, int first_piece) {
    const int size = coded ? 1 : 2;
    const PackedTokens tokens =
        packed_tokens<Pieces::kTokens>(rows, Pieces::token(thread), strides.seen_begin, strides.seen_end, size);
    const std::int64_t of_dim = strides.cached.dim * size;
    const std::uint64_t first = tokens.address + static_cast<std::uint64_t>(Pieces::dim(thread, 0, first_piece) * of_dim);
    const auto address = [&](int i) { return first + static_cast<std::uint64_t>(Pieces::dims_to(i) * of_dim); };
    QUIRE_UNROLL
    for (int i = 0; i < kCount; ++i) raw[i] = {};
    if (tokens.address == 0) return;
    if (!coded) {
      QUIRE_UNROLL
      for (int i = 0; i < kCount; ++i) raw[i] = load_global<kWords>(address(i));
    } else {
      QUIRE_UNROLL
      for (int i = 0; i < kCount; ++i) set_codes(i, load_global<kWords / 2>(address(i)));
    }
    constexpr std::uint32_t kAll = (1u << Pieces::kTokens) - 1;
    if (tokens.seen == kAll) return;
    QUIRE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      const std::uint32_t bits = seen_bits(tokens.seen, w * (coded ? 4 : 2), coded);
      QUIRE_UNROLL
      for (int i = 0; i < kCount; ++i) raw[i].word[w] &= bits;
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
  static constexpr int kColumns = kStagedPieces * kPieceDims<kDim> * kChunks;
  QUIRE_DEVICE void store_values(Quad* values, ValueForm form, int thread) const {
    if (form == ValueForm::pieces) return store_tokens(values, thread);
    const int column = piece_of(thread) * kPieceDims<kDim> * kChunks + chunk_of(thread);
    QUIRE_UNROLL
    for (int i = 0; i < kCount; i += 4)
      store_quad(values + key_of<true>(thread, i) / 4 * kColumns + column, raw[i], raw[i + 1], raw[i + 2], raw[i + 3]);
  }
  QUIRE_DEVICE void store_tokens(Quad* values, int thread) const {
    QUIRE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      Quad* const to = values + Pieces::token(thread) / 4 * kColumns + Pieces::column(thread, i);
      QUIRE_UNROLL
      for (int q = 0; q < kWords / 2; ++q) to[q * kColumns] = {raw[i].word[2 * q], raw[i].word[2 * q + 1]};
    }
  }
};

}  // namespace quire::hip::matrix
