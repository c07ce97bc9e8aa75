// SPDX-License-Identifier: Apache-2.0
// Values of packed caches (V [pages, kv_heads, head_dim, page_size]) on their way to shared memory: neighbouring tokens of a dim
// are neighbours in memory, and the quads of value_tile.h as they stand. A piece is as many tokens of a dim as a piece of a row
// has dims.
#pragma once

#include "backend/hip/matrix/sizes.h"
#include "backend/hip/matrix/value_tile.h"

namespace quire::hip::matrix {

/// Names the pieces of a thread: pieces of kKeys tokens by kColumns dims are dealt out to kThreads threads at once, and piece i
/// is the thread's i-th. Threads side by side have the pieces of one dim, then dims of neighbouring chunks, whose quads are
/// neighbours in shared memory.
template <int kDim, int kKeys, int kThreads>
struct PackedPieces {
  static constexpr int kTokens = kPieceDims<kDim>;  ///< tokens of a piece
  static constexpr int kOfDim = kKeys / kTokens;    ///< pieces that hold one dim of a tile
  static_assert(kTokens % 4 == 0 && kKeys % kTokens == 0 && kThreads % kOfDim == 0);

  /// First token of the thread's pieces.
  QUIRE_DEVICE static int token(int thread) { return thread % kOfDim * kTokens; }
  QUIRE_DEVICE static int column(int thread, int i) { return (thread + i * kThreads) / kOfDim; }
  QUIRE_DEVICE static int dim(int thread, int i, int first_piece) {
    const int at = column(thread, i);
    return at % kChunks * (kDim / kChunks) + first_piece * kPieceDims<kDim> + at / kChunks;
  }
  /// Dims from a thread's first piece to piece i. All threads have the same number: the columns of one turn begin at a chunk, or
  /// at a fraction of one.
  static constexpr int kColumnsAtOnce = kThreads / kOfDim;
  static_assert(kColumnsAtOnce % kChunks == 0 || kChunks % kColumnsAtOnce == 0);
  QUIRE_DEVICE static constexpr int dims_to(int i) {
    const int at = i * kColumnsAtOnce;
    return at % kChunks * (kDim / kChunks) + at / kChunks;
  }
};

/// The place of the tokens of a thread's pieces.
struct PackedTokens {
  std::uint64_t address = 0;  ///< address of dim 0 of the first token; 0 = no row sees one
  std::uint32_t seen = 0;     ///< bits of the tokens that a row sees
};

/// Finds the place of kTokens tokens from `token` on. Tokens in [begin, end) are seen and have an address in `rows`. One page
/// holds all kTokens.
template <int kTokens>
QUIRE_DEVICE PackedTokens packed_tokens(const std::uint64_t* rows, int token, int begin, int end, int item_size) {
  const int first = token > begin ? token : begin, last = token + kTokens < end ? token + kTokens : end;
  if (first >= last) return {};
  const std::uint32_t below_first = (1u << (first - token)) - 1, below_last = (1u << (last - token)) - 1;
  return {rows[first] - static_cast<std::uint64_t>((first - token) * item_size), below_last & ~below_first};
}

/// Ones for the seen tokens among those from `first` on that a word has.
QUIRE_DEVICE std::uint32_t seen_bits(std::uint32_t seen, int first, bool coded) {
  const std::uint32_t of_word = seen >> first;
  std::uint32_t bits = 0;
  QUIRE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (coded && (of_word >> i & 1u) != 0) bits |= 0xFFu << 8 * i;
    if (!coded && i < 2 && (of_word >> i & 1u) != 0) bits |= 0xFFFFu << 16 * i;
  }
  return bits;
}

}  // namespace quire::hip::matrix
