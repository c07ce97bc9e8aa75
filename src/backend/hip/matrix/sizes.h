// SPDX-License-Identifier: Apache-2.0
// The sizes that launches, work lists and kernels of the matrix units share. Two shapes of tiles:
//
//   short  kShortRows score rows (decode: the heads of a group, times few query rows). The waves of a block share the rows and
//   part the
//          keys: each folds tiles of 16 keys on its own.
//   tall   kTallRows score rows (prefill). Each wave owns 16 rows, and all share tiles of keys.
#pragma once

namespace quire::hip::matrix {

constexpr int kBlockRows = 16, kBlockKeys = 16;  ///< rows and keys of one matrix instruction
constexpr int kShortRows = 16;                   ///< WorkList::tile_rows of the short list
constexpr int kTallRows = 64;                    ///< WorkList::tile_rows of the tall list
constexpr int kPartKeys = 64;                    ///< WorkList::tile_keys of both: parts begin at multiples of it
constexpr int kShortKeys = kBlockKeys;

/// With 32 lanes, sums and operands of a row take twice the registers of each. So the query stays in shared memory there,
template <class Gpu, int kDim>
constexpr bool kQueryInShared = Gpu::kWave == 32 && kDim >= 128;
/// and a wave makes half of the output dims of its rows: kDimParts waves make the same scores.
template <class Gpu, int kDim>
constexpr int kDimParts = Gpu::kWave == 32 && kDim == 256 ? 2 : 1;
template <class Gpu, int kDim>
constexpr int kOutBlocks = kDim / 16 / kDimParts<Gpu, kDim>;  ///< blocks of 16 output dims of a wave

template <class Gpu, int kDim>
constexpr int kShortWaves = 4;  ///< waves of a block
template <class Gpu, int kDim>
constexpr int kTallWaves = kTallRows / kBlockRows * kDimParts<Gpu, kDim>;

/// Keys of a tile of the tall list, so that query and tile fit the 64 KiB of a block.
template <class Gpu, int kDim>
constexpr int kTallKeys = kDimParts<Gpu, kDim> == 2 ? 16 : 32;

/// A row is kChunks chunks of head_dim / 16 dims; a chunk is staged in pieces of at most 16 bytes.
constexpr int kChunks = 16;
template <int kDim>
constexpr int kPieceDims = kDim / kChunks < 8 ? kDim / kChunks : 8;
template <int kDim>
constexpr int kPieces = kDim / kChunks / kPieceDims<kDim>;  ///< pieces of a chunk

/// Elements from one row of K or of the query to the next in shared memory: 16 bytes of padding put the rows that a wave reads
/// together into different banks.
template <int kDim>
constexpr int kPitch = kDim + 8;

}  // namespace quire::hip::matrix
